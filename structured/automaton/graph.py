"""``StateGraph``: the moves between the states of an automaton, whatever the moves are called."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftline.structured.automaton.rows import Indices, spans

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StateGraph:
    """Pairs of states with a move between them.

    Attributes:
        states: the number of states.
        after: state s leads to ``after[after_first[s]:after_first[s + 1]]``.
        before: ``before[before_first[s]:before_first[s + 1]]`` lead to state s.
    """

    states: int
    after_first: Indices
    after: Indices
    before_first: Indices
    before: Indices

    @staticmethod
    def of(states: int, sources: npt.NDArray[np.integer], targets: npt.NDArray[np.integer]) -> StateGraph:
        """The graph of some moves, which may repeat a pair."""
        pairs = np.unique(sources.astype(np.int64) * states + targets)
        origins, goals = np.divmod(pairs, states)
        bounds = np.arange(states + 1)
        order = np.argsort(goals, kind="stable")
        return StateGraph(
            states,
            np.searchsorted(origins, bounds),
            goals,
            np.searchsorted(goals[order], bounds),
            origins[order],
        )

    def distances(self, ends: Flags) -> npt.NDArray[np.float64]:
        """The fewest moves from each state to one of the ends: [states] float, infinite where none is reachable."""
        return _layers(self.states, np.flatnonzero(ends), self.before_first, self.before)

    def reachable(self, start: int) -> Flags:
        """The states that moves from ``start`` lead to, itself included."""
        return np.isfinite(_layers(self.states, np.array([start]), self.after_first, self.after))

    def leading_to(self, states: Indices) -> Indices:
        """The states with a move to one of ``states``, ascending."""
        return np.unique(_neighbours(states, self.before_first, self.before))


def _neighbours(states: Indices, first: Indices, others: Indices) -> Indices:
    return others[spans(first[states], first[states + 1] - first[states])]


def _layers(states: int, front: Indices, first: Indices, others: Indices) -> npt.NDArray[np.float64]:
    """Breadth-first distances from the states of ``front``."""
    distance = np.full(states, np.inf)
    step = 0.0
    while len(front):
        distance[front] = step
        step += 1
        found = _neighbours(front, first, others)
        front = np.unique(found[np.isinf(distance[found])])
    return distance
