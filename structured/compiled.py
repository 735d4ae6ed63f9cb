"""What a constraint compiles to: what makes matchers, and what it was made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from draftline.structured.automaton.forced_drafts import ForcedDrafts
from draftline.structured.automaton.matcher import AutomatonMatcher
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.errors import Violation
from draftline.structured.forced import forced_tokens
from draftline.structured.grammar.matcher import GrammarMatcher
from draftline.structured.matcher import Matcher
from draftline.structured.vocabulary import ByteVocabulary


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


class Progress(Protocol):
    """How far one output has come in its constraint.

    Attributes:
        matcher: its matcher.
    """

    @property
    def matcher(self) -> Matcher: ...  # noqa: D102 - above

    @property
    def automaton(self) -> tuple[TokenAutomaton, ForcedDrafts] | None:
        """The automaton whose state ``state`` is, if it is one that enforces the constraint."""
        ...

    @property
    def state(self) -> int:
        """The automaton's state; 0 without one."""
        ...

    def forced(self, most: int) -> tuple[int, ...]:
        """Up to ``most`` tokens that will very likely come next, since their text is forced."""
        ...


class Compiled(Protocol):
    """A compiled constraint, shared by all outputs that have it.

    Attributes:
        report: what became of it.
        shortest: the fewest tokens of a text that it allows, without end-of-sequence; None where nobody knows.
        nbytes: about how much memory it takes.
    """

    @property
    def report(self) -> Report: ...  # noqa: D102 - above
    @property
    def shortest(self) -> int | None: ...  # noqa: D102
    @property
    def nbytes(self) -> int: ...  # noqa: D102

    def begin(self, budget: int | None = None) -> Progress:
        """A new output. It is to be complete within ``budget`` tokens, if not None and if it was compiled for that."""
        ...


@dataclass(frozen=True, slots=True)
class CompiledAutomaton:
    """A constraint that an automaton enforces. See `Compiled`."""

    report: Report
    automaton: TokenAutomaton
    drafts: ForcedDrafts

    @property
    def shortest(self) -> int:
        """See `Compiled`."""
        return int(self.automaton.distance[0])

    @property
    def nbytes(self) -> int:
        """See `Compiled`."""
        return self.automaton.nbytes + self.drafts.nbytes

    def begin(self, budget: int | None = None) -> AutomatonProgress:
        """See `Compiled.begin`."""
        matcher = AutomatonMatcher(self.automaton, budget=budget)
        return AutomatonProgress(matcher, (self.automaton, self.drafts))


@dataclass(frozen=True, slots=True)
class AutomatonProgress:
    """See `Progress`."""

    matcher: AutomatonMatcher
    automaton: tuple[TokenAutomaton, ForcedDrafts]

    @property
    def state(self) -> int:
        """See `Progress.state`."""
        return self.matcher.state

    def forced(self, most: int) -> tuple[int, ...]:
        """See `Progress.forced`."""
        return self.automaton[1].at(self.state)[:most]


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A constraint that llguidance enforces. See `Compiled`."""

    report: Report
    pristine: GrammarMatcher
    source_bytes: int
    vocabulary: ByteVocabulary
    shortest: None = None

    @property
    def nbytes(self) -> int:
        """See `Compiled`. A guess: llguidance does not say, and its lexer's states come as they are needed."""
        return (1 << 20) + 64 * self.source_bytes

    def begin(self, budget: int | None = None) -> GrammarProgress:
        """See `Compiled.begin`."""
        return GrammarProgress(self.pristine.copy(), self.vocabulary)


@dataclass(frozen=True, slots=True)
class GrammarProgress:
    """See `Progress`."""

    matcher: GrammarMatcher
    vocabulary: ByteVocabulary
    automaton: None = None
    state: int = 0

    def forced(self, most: int) -> tuple[int, ...]:
        """See `Progress.forced`."""
        return forced_tokens(self.matcher, self.vocabulary, most)
