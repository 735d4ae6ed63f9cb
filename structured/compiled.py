"""What a constraint compiles to: what makes matchers, and what it was made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from draftline.structured.automaton.forced_drafts import ForcedDrafts
from draftline.structured.automaton.matcher import AutomatonMatcher
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.errors import Violation
from draftline.structured.grammar_matcher import GrammarMatcher
from draftline.structured.matcher import Matcher


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a constraint.

    Attributes:
        backend: what enforces it: "automaton" or "grammar".
        states: of the automaton; 0 for a grammar.
        classes: of tokens that the automaton tells apart; 0 for a grammar.
        masks: distinct sets of tokens that the automaton allows; 0 for a grammar.
        compile_s: seconds that it took.
        unenforced: what was asked for and is not enforced; empty unless best effort was asked for.
        no_automaton: why a grammar enforces it; None where an automaton does.
    """

    backend: str
    states: int
    classes: int
    masks: int
    compile_s: float
    unenforced: tuple[Violation, ...]
    no_automaton: str | None


class Compiled(Protocol):
    """A compiled constraint, shared by all outputs that have it.

    Attributes:
        report: what became of it.
        automaton: its tables, with the drafts of its states, if it is an automaton.
        shortest: the fewest tokens of a text that it allows, without end-of-sequence; None where nobody knows.
        nbytes: about how much memory it takes.
    """

    @property
    def report(self) -> Report: ...  # noqa: D102 - above
    @property
    def automaton(self) -> tuple[TokenAutomaton, ForcedDrafts] | None: ...  # noqa: D102
    @property
    def shortest(self) -> int | None: ...  # noqa: D102
    @property
    def nbytes(self) -> int: ...  # noqa: D102

    def matcher(self) -> Matcher:
        """A new matcher, at the beginning of a text."""
        ...


@dataclass(frozen=True, slots=True)
class CompiledAutomaton:
    """A constraint that an automaton enforces. See `Compiled`."""

    report: Report
    automaton: tuple[TokenAutomaton, ForcedDrafts]

    @property
    def shortest(self) -> int:
        """See `Compiled`."""
        return int(self.automaton[0].distance[0])

    @property
    def nbytes(self) -> int:
        """See `Compiled`."""
        return self.automaton[0].nbytes + self.automaton[1].nbytes

    def matcher(self) -> AutomatonMatcher:
        """See `Compiled.matcher`."""
        return AutomatonMatcher(self.automaton[0])


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A constraint that llguidance enforces. See `Compiled`."""

    report: Report
    pristine: GrammarMatcher
    source_bytes: int
    automaton: None = None
    shortest: None = None

    @property
    def nbytes(self) -> int:
        """See `Compiled`. A guess: llguidance does not say, and its lexer's states come as they are needed."""
        return (1 << 20) + 64 * self.source_bytes

    def matcher(self) -> GrammarMatcher:
        """See `Compiled.matcher`."""
        return self.pristine.copy()
