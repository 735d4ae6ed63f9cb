"""``StartingAutomaton``: a constraint whose outputs may begin, while the tables of its automaton are still being built."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from draftline.structured.automaton.host_automaton import HostAutomaton, HostAutomatonMatcher
from draftline.structured.compiled import CompiledConstraint, CompileReport, ConstraintProgress, HostProgress
from draftline.structured.tags.walk import TagReader


class StartingAutomaton:
    """A `CompiledConstraint`. Outputs that begin before the tables are built stay on the host; later ones use the tables.

    Both have the same masks in every state, so that no output depends on when the tables were built.

    Attributes:
        report: of the automaton over bytes.
        host: the automaton over bytes.
        tags: see `CompiledConstraint`.
        marking: likewise.
        shortest: None; with ``close_within_budget``, the compiler builds the tables first.
        shortest_reasoning: 0; where it has a limit, likewise.
        whole: the constraint with its tables.
    """

    shortest: None = None
    shortest_reasoning: int = 0

    def __init__(
        self, report: CompileReport, host: HostAutomaton, tags: TagReader | None, marking: Mapping[int, bytes]
    ) -> None:
        """There are no tables yet."""
        self.report = report
        self.host = host
        self.tags = tags
        self.marking = marking
        self.whole: Future[CompiledConstraint] = Future()

    @property
    def nbytes(self) -> int:
        """The size of the moves and masks."""
        return self.host.nbytes

    def begin(self, budget: int | None = None, reasoning_budget: int | None = None) -> ConstraintProgress:
        """Start an output where the constraint is ready for it."""
        if self.whole.done() and self.whole.exception() is None:
            return self.whole.result().begin(budget, reasoning_budget)
        return HostProgress(HostAutomatonMatcher(self.host), self.host.vocabulary)
