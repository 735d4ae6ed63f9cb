"""``CompiledGrammar``: a constraint that llguidance enforces."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from draftline.structured.automaton.matcher import AutomatonMatcher
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.compiled import CompiledConstraint, CompileReport, HostProgress, settled
from draftline.structured.grammar.guarded import GuardedMatcher
from draftline.structured.grammar.matcher import GrammarMatcher
from draftline.structured.matcher import Matcher
from draftline.structured.tags.walk import TagReader
from draftline.structured.unique.cursor import Position
from draftline.structured.unique.matcher import UniqueMatcher
from draftline.structured.unique.paths import UniquePaths
from draftline.structured.unique.tokens import ItemTokens
from draftline.structured.vocabulary import ByteVocabulary


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A `CompiledConstraint` of the grammar backend.

    Attributes:
        report: see `CompiledConstraint`.
        pristine: at the beginning of a text.
        source_bytes: the size of the grammar.
        vocabulary: the model's.
        unique: where arrays hold different items, the tokens, and the position of the empty text;
            None if nowhere.
        guard: the automaton of reasoning with a limit, and of any text behind it; None without such reasoning.
        tags: see `CompiledConstraint`.
        marking: see `CompiledConstraint`.
        shortest: unknown.
    """

    report: CompileReport
    pristine: GrammarMatcher
    source_bytes: int
    vocabulary: ByteVocabulary
    unique: tuple[UniquePaths, ItemTokens, Position] | None
    guard: TokenAutomaton | None
    tags: TagReader | None
    marking: Mapping[int, bytes]
    shortest: None = None

    @property
    def shortest_reasoning(self) -> int:
        """The fewest tokens of the reasoning with its marks; 0 if it has no limit."""
        return 0 if self.guard is None else self.guard.early_distance

    @property
    def nbytes(self) -> int:
        """An estimate: llguidance does not report its size. It grows as texts use up the lexer."""
        return self.pristine.parsers.nbytes + 64 * self.source_bytes

    @property
    def whole(self) -> Future[CompiledConstraint]:
        """This one."""
        return settled(self)

    def begin(self, budget: int | None = None, reasoning_budget: int | None = None) -> HostProgress:
        """Start an output. The compiler rejects budgets for grammars, but for that of reasoning."""
        matcher: Matcher = self.pristine.beginning()
        if self.unique is not None:
            matcher = UniqueMatcher(matcher, *self.unique)
        if self.guard is not None:
            matcher = GuardedMatcher(matcher, AutomatonMatcher(self.guard, early_budget=reasoning_budget))
        return HostProgress(matcher, self.vocabulary)
