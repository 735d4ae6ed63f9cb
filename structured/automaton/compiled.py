"""``CompiledAutomaton``: a constraint that an automaton enforces, and the progress of an output through it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from draftline.structured.automaton.draft_table import DraftTable
from draftline.structured.automaton.matcher import AutomatonMatcher
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.compiled import AutomatonTables, CompiledConstraint, CompileReport, settled
from draftline.structured.tags.walk import TagReader


@dataclass(frozen=True, slots=True)
class CompiledAutomaton:
    """A `CompiledConstraint` of the automaton backend."""

    report: CompileReport
    automaton: TokenAutomaton
    drafts: DraftTable
    tags: TagReader | None
    marking: Mapping[int, bytes]

    @property
    def shortest(self) -> int:
        """The fewest tokens from the initial state to an accepting one."""
        return int(self.automaton.distance[0])

    @property
    def nbytes(self) -> int:
        """The size of the tables."""
        return self.automaton.nbytes + self.drafts.nbytes

    @property
    def shortest_reasoning(self) -> int:
        """The fewest tokens from the initial state to the end of the reasoning."""
        return self.automaton.early_distance

    @property
    def whole(self) -> Future[CompiledConstraint]:
        """This one."""
        return settled(self)

    def begin(self, budget: int | None = None, reasoning_budget: int | None = None) -> AutomatonProgress:
        """Start an output in the initial state."""
        matcher = AutomatonMatcher(self.automaton, budget=budget, early_budget=reasoning_budget)
        return AutomatonProgress(matcher, AutomatonTables(self.automaton, self.drafts))


@dataclass(frozen=True, slots=True)
class AutomatonProgress:
    """A `ConstraintProgress` of the automaton backend."""

    matcher: AutomatonMatcher
    tables: AutomatonTables

    @property
    def state(self) -> int:
        """The automaton's state."""
        return self.matcher.state

    def forced(self, max_tokens: int) -> tuple[int, ...]:
        """Look the drafts of the state up in the table."""
        return self.tables.drafts.at(self.state)[:max_tokens]
