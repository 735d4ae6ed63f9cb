"""``CompiledConstraint``: the contract between the engine and a compiled constraint, whatever backend enforces it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, Protocol

from draftline.structured.automaton.draft_table import DraftTable
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.errors import Violation
from draftline.structured.forced_drafts import forced_drafts
from draftline.structured.matcher import Matcher
from draftline.structured.tags.walk import TagReader
from draftline.structured.vocabulary import ByteVocabulary


@dataclass(frozen=True, slots=True)
class CompileReport:
    """The result of compiling a constraint, for its author.

    Attributes:
        backend: the backend that enforces it: "automaton" or "grammar".
        runs_on: where masks are computed: on the "device", by look-ups in an automaton's tables, or on the "host".
        compile_s: compile time in seconds.
        unenforced: parts of the constraint that are not enforced: annotations, and with best effort also keywords.
        closed: JSON pointers of the schemas whose objects were closed.
        states: states of the automaton; 0 for a grammar.
        classes: token classes that the automaton's tables tell apart; 0 without tables.
        masks: distinct token masks of the tables; 0 without them.
        no_automaton: why a grammar enforces it; None for an automaton.
    """

    backend: Literal["automaton", "grammar"]
    runs_on: Literal["device", "host"]
    compile_s: float
    unenforced: tuple[Violation, ...]
    closed: tuple[str, ...]
    states: int = 0
    classes: int = 0
    masks: int = 0
    no_automaton: str | None = None


@dataclass(frozen=True, slots=True)
class AutomatonTables:
    """The tables of a constraint that an automaton enforces, as the device gets them.

    Attributes:
        automaton: the automaton over tokens.
        drafts: the forced drafts of its states.
    """

    automaton: TokenAutomaton
    drafts: DraftTable


class ConstraintProgress(Protocol):
    """The progress of one output through its constraint.

    Attributes:
        matcher: the output's matcher.
    """

    @property
    def matcher(self) -> Matcher: ...  # noqa: D102 - above

    @property
    def tables(self) -> AutomatonTables | None:
        """The tables of the automaton that ``state`` refers to; None if the host alone knows the masks."""
        ...

    @property
    def state(self) -> int:
        """The automaton's state; 0 without tables."""
        ...

    def forced(self, max_tokens: int) -> tuple[int, ...]:
        """Up to ``max_tokens`` drafts: tokens of the text that the constraint forces next."""
        ...


class CompiledConstraint(Protocol):
    """A compiled constraint. All outputs that have the constraint share it.

    Attributes:
        report: the result of compiling it.
        shortest: the fewest tokens of an allowed text, without end-of-sequence; None if that is unknown.
        shortest_reasoning: the fewest tokens of the reasoning with its marks; 0 if it has no limit.
        nbytes: its approximate size in memory, without ``tags``.
        tags: finds the tags of outputs; None for a constraint without tags.
        marking: the names of the special tokens that its marks may be written with, by token. They are part of the text.
    """

    @property
    def report(self) -> CompileReport: ...  # noqa: D102 - above
    @property
    def shortest(self) -> int | None: ...  # noqa: D102
    @property
    def shortest_reasoning(self) -> int: ...  # noqa: D102
    @property
    def nbytes(self) -> int: ...  # noqa: D102
    @property
    def tags(self) -> TagReader | None: ...  # noqa: D102
    @property
    def marking(self) -> Mapping[int, bytes]: ...  # noqa: D102
    @property
    def whole(self) -> Future[CompiledConstraint]:
        """The constraint once all of it is compiled. Outputs may begin before that."""
        ...

    def begin(self, budget: int | None = None, reasoning_budget: int | None = None) -> ConstraintProgress:
        """Start an output.

        Args:
            budget: the output is complete within this many tokens, if the constraint was compiled with
                ``close_within_budget``; None is no limit.
            reasoning_budget: the reasoning ends within this many tokens, if the constraint was compiled with
                ``reasoning.limited``; None is no limit.
        """
        ...


@dataclass(frozen=True, slots=True)
class HostProgress:
    """A `ConstraintProgress` whose masks the host computes: there are no tables."""

    matcher: Matcher
    vocabulary: ByteVocabulary
    tables: None = None
    state: int = 0

    def forced(self, max_tokens: int) -> tuple[int, ...]:
        """Tokenize the forced text."""
        return forced_drafts(self.matcher, self.vocabulary, max_tokens)


def settled(compiled: CompiledConstraint) -> Future[CompiledConstraint]:
    """`CompiledConstraint.whole` of a constraint that is compiled as a whole."""
    future: Future[CompiledConstraint] = Future()
    future.set_result(compiled)
    return future
