"""``ByteAutomaton``: a finite automaton over bytes, pruned, and minimised where that is worth its time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftline.structured.automaton.byte_moves import END, ByteMoves
from draftline.structured.automaton.graph import Flags, StateGraph
from draftline.structured.automaton.minimise import equal_states
from draftline.structured.automaton.rows import Indices, Ints, equal_rows
from draftline.structured.errors import InvalidConstraintError


@dataclass(frozen=True, slots=True)
class ByteAutomaton:
    """An automaton over bytes. State 0 is the initial state; an accepting state can be reached from every state.

    Attributes:
        next: [states + 1, classes] int32. The last row is the dead state, from which no accepting state can be reached.
        byte_class: [256] uint8, the class of each byte, which is its column of ``next``.
        accepting: [states] bool.
        early: [states] bool, whether the text is still before its boundary, such as the end of reasoning; None without one.
        boundary: the state right at the boundary; None without one.
    """

    next: Ints
    byte_class: npt.NDArray[np.uint8]
    accepting: Flags
    early: Flags | None = None
    boundary: int | None = None

    @property
    def states(self) -> int:
        """The number of states, without the dead state."""
        return len(self.accepting)

    @property
    def nbytes(self) -> int:
        """The size of the arrays."""
        return self.next.nbytes + self.byte_class.nbytes + self.accepting.nbytes

    def graph(self) -> StateGraph:
        """The moves between its states."""
        sources, columns = np.nonzero(self.next[:-1] != self.states)
        return StateGraph.of(self.states, sources, self.next[sources, columns])

    def within(self, usable: Flags) -> ByteAutomaton:
        """The automaton of the texts whose bytes are all usable.

        Args:
            usable: [256] bool.

        Raises:
            InvalidConstraintError: it accepts no text.
        """
        moves = self.next[:-1] != self.states
        if not moves.any(axis=0)[self.byte_class[~usable]].any():
            return self
        on = moves[:, self.byte_class] & usable
        table = np.where(on, self.next[:-1, self.byte_class], np.int32(-1))
        return ByteAutomaton.of_table(table, self.accepting, self.early, self.boundary)

    @staticmethod
    def of(moves: ByteMoves) -> ByteAutomaton:
        """The automaton of some moves, without states that no text passes.

        Raises:
            InvalidConstraintError: it accepts no text.
        """
        symbols = np.frombuffer(moves.symbols, np.int16)
        # Behind the text's end are states without a name of their own.
        inside = symbols < END
        sources = np.repeat(np.frombuffer(moves.sources, np.int64), np.frombuffer(moves.counts, np.int64))[inside]
        symbols, targets = symbols[inside], np.frombuffer(moves.targets, np.int64)[inside]
        # outlines-core names states by multiples of a power of two, up to some million.
        named = np.zeros(max(moves.begin, sources.max(initial=0), targets.max(initial=0)) + 1, np.bool_)
        named[moves.begin] = named[sources] = named[targets] = True
        names = np.flatnonzero(named)
        index = np.zeros(len(named), np.int32)
        index[names] = np.arange(len(names))
        accepting = np.isin(names, np.frombuffer(moves.final, np.int64))
        return _pruned(int(index[moves.begin]), index[sources], symbols, index[targets], np.arange(256), accepting)

    @staticmethod
    def of_table(
        table: Ints,
        accepting: Flags,
        early: Flags | None,
        boundary: int | None,
        byte_class: Indices | None = None,
    ) -> ByteAutomaton:
        """The automaton of a table, without states that no text passes.

        Args:
            table: [S, classes] int32, the target of each move; a negative one is none. State 0 is the initial one.
            accepting: [S] bool.
            early: [S] bool, see `ByteAutomaton`.
            boundary: see `ByteAutomaton`.
            byte_class: [256] the column of each byte; None for a table with 256 columns.

        Raises:
            InvalidConstraintError: it accepts no text.
        """
        columns, merged = _equal_columns(table)
        sources, symbols = np.nonzero(columns >= 0)
        symbol_of = merged if byte_class is None else merged[byte_class]
        return _pruned(0, sources, symbols, columns[sources, symbols], symbol_of, accepting, early, boundary)


def minimised(automaton: ByteAutomaton) -> ByteAutomaton:
    """The automaton with one state for each set of equivalent states. States before the boundary stay apart from others."""
    graph = automaton.graph()
    # States at different distances are not equivalent: this splits long chains at once.
    distance = graph.distances(automaton.accepting).astype(np.int64)
    early, boundary = automaton.early, automaton.boundary
    kind = distance if early is None else np.where(early, -1 - distance, distance)
    block = equal_states(automaton.next, graph, kind)
    # In the order of their first states, so that the initial state's block comes first.
    first = np.sort(np.unique(block, return_index=True)[1])
    number = np.full(block.max() + 1, -1, np.int32)
    number[block[first]] = np.arange(len(first))
    table = np.full((len(first) + 1, automaton.next.shape[1]), len(first), np.int32)
    table[:-1] = np.append(number[block], len(first))[automaton.next[first]]
    columns, merged = _equal_columns(table)
    return ByteAutomaton(
        columns,
        merged[automaton.byte_class].astype(np.uint8),
        automaton.accepting[first],
        None if early is None else early[first],
        None if boundary is None else int(number[block[boundary]]),
    )


def _pruned(
    begin: int,
    sources: npt.NDArray[np.integer],
    symbols: npt.NDArray[np.integer],
    targets: npt.NDArray[np.integer],
    symbol_of: Indices,
    accepting: Flags,
    early: Flags | None = None,
    boundary: int | None = None,
) -> ByteAutomaton:
    """The automaton of these moves between states, without states that no text passes; ``symbol_of`` is of each byte."""
    graph = StateGraph.of(len(accepting), sources, targets)
    alive = np.isfinite(graph.distances(accepting)) & graph.reachable(begin)
    if not alive[begin]:
        raise InvalidConstraintError("no text matches it")
    # State 0 is the initial one.
    kept = np.concatenate(([begin], np.flatnonzero(alive & (np.arange(len(alive)) != begin))))
    number = np.full(len(alive), len(kept), np.int32)
    number[kept] = np.arange(len(kept))
    on = alive[sources] & alive[targets]
    table = np.full((symbol_of.max() + 1, len(kept) + 1), len(kept), np.int32)
    table[symbols[on], number[sources[on]]] = number[targets[on]]
    first, byte_class = equal_rows(table)
    return ByteAutomaton(
        np.ascontiguousarray(table[first].T),
        byte_class[symbol_of].astype(np.uint8),
        accepting[kept],
        None if early is None else early[kept],
        None if boundary is None or not alive[boundary] else int(number[boundary]),
    )


def _equal_columns(table: Ints) -> tuple[Ints, Indices]:
    """The distinct columns, and the index among them of each column."""
    first, kind = equal_rows(np.ascontiguousarray(table.T))
    return np.ascontiguousarray(table[:, first]), kind
