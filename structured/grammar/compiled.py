"""``CompiledGrammar``: a constraint that llguidance enforces, and the progress of an output through it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from draftline.structured.compiled import CompiledConstraint, CompileReport, settled
from draftline.structured.forced_drafts import forced_drafts
from draftline.structured.grammar.matcher import GrammarMatcher
from draftline.structured.vocabulary import ByteVocabulary


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A `CompiledConstraint` of the grammar backend."""

    report: CompileReport
    pristine: GrammarMatcher
    source_bytes: int
    vocabulary: ByteVocabulary
    shortest: None = None

    @property
    def nbytes(self) -> int:
        """An estimate: llguidance does not report its size, and its lexer creates states on demand."""
        return (1 << 20) + 64 * self.source_bytes

    @property
    def whole(self) -> Future[CompiledConstraint]:
        """This one."""
        return settled(self)

    def begin(self, budget: int | None = None) -> GrammarProgress:
        """Start an output. The compiler rejects budgets for grammars."""
        return GrammarProgress(self.pristine.beginning(), self.vocabulary)


@dataclass(frozen=True, slots=True)
class GrammarProgress:
    """A `ConstraintProgress` of the grammar backend."""

    matcher: GrammarMatcher
    vocabulary: ByteVocabulary
    automaton: None = None
    state: int = 0

    def forced(self, max_tokens: int) -> tuple[int, ...]:
        """Tokenize the text that the grammar forces."""
        return forced_drafts(self.matcher, self.vocabulary, max_tokens)
