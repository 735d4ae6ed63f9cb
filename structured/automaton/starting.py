"""``StartingAutomaton``: a constraint whose outputs may begin, while the tables of its automaton are still being built."""

from __future__ import annotations

from concurrent.futures import Future

from draftline.structured.automaton.host_automaton import HostAutomaton, HostProgress
from draftline.structured.compiled import CompiledConstraint, CompileReport, ConstraintProgress


class StartingAutomaton:
    """A `CompiledConstraint`. Outputs that begin before the tables are built stay on the host; later ones use the tables.

    Both have the same masks in every state, so that no output depends on when the tables were built.

    Attributes:
        report: of the automaton over bytes.
        host: the automaton over bytes.
        shortest_reasoning: 0, and ``tags`` None: the compiler builds the tables of structural tags and reasoning first.
        marking: empty, likewise.
        shortest: None; with ``close_within_budget``, the compiler builds the tables first.
        whole: the constraint with its tables.
    """

    shortest_reasoning: int = 0
    tags: None = None
    shortest: None = None

    def __init__(self, report: CompileReport, host: HostAutomaton) -> None:
        """There are no tables yet."""
        self.report = report
        self.host = host
        self.marking: dict[int, bytes] = {}
        self.whole: Future[CompiledConstraint] = Future()

    @property
    def nbytes(self) -> int:
        """The size of the moves and masks."""
        return self.host.nbytes

    def begin(self, budget: int | None = None, reasoning_budget: int | None = None) -> ConstraintProgress:
        """Start an output where the constraint is ready for it."""
        if self.whole.done() and self.whole.exception() is None:
            return self.whole.result().begin(budget, reasoning_budget)
        return HostProgress(self.host)
