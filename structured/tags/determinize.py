"""The deterministic automaton of a form, by the subset construction: its states are the states of a `TagNfa`.

Nearly all positions are inside leaves and free text, where one position moves at a time. Such states need no search for
the set that they are: `_States` numbers them by their position, many at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from draftline.structured.automaton.byte_automaton import ByteAutomaton
from draftline.structured.automaton.limits import AutomatonTooLargeError
from draftline.structured.automaton.rows import Indices, Ints, equal_rows
from draftline.structured.tags.nfa import Positions, TagNfa, dense


def determinize(nfa: TagNfa, max_states: int) -> ByteAutomaton:
    """The deterministic automaton. Equivalent states are not merged.

    Args:
        nfa: the automaton of a form.
        max_states: the most states, before minimisation.

    Raises:
        AutomatonTooLargeError: it has more.
        InvalidConstraintError: no text is complete.
    """
    states = _States(nfa)
    if len(nfa.rows) <= max_states:
        # All at once, in place of layer by layer. States that no text reaches are left out in the end.
        states.add_plain(np.flatnonzero(states.plain))
    # Most bytes are the same to every position. Each set of them is one column.
    symbols, byte_class = _symbols(nfa)
    table: list[Ints] = []
    done = 0
    while done < len(states.found):
        if len(states.found) > max_states:
            raise AutomatonTooLargeError(f"it has more than {max_states} states")
        layer = states.found[done:]
        done = len(states.found)
        table.append(_moves(nfa, states, layer, symbols))
    accepting = np.array([*map(nfa.is_complete, states.found)])
    early = np.array([*map(nfa.is_early, states.found)])
    boundary = None
    if nfa.boundary is not None:
        after = nfa.state_at(nfa.boundary)
        boundary = states.found.index(after) if after in states.found else None
    return ByteAutomaton.of_table(np.concatenate(table), accepting, early, boundary, byte_class)


class _States:
    """The states that were found so far. A state's number is its index.

    Attributes:
        found: the states.
        plain: which positions are all of the state that a move to them leads to. The last one, which -1 refers to, is none.
        lone: where a move to each position leads if nothing else moves; -1 is not known yet, and the last one is none.
    """

    def __init__(self, nfa: TagNfa) -> None:
        """The state of the empty text alone."""
        self.found = [nfa.start]
        plain = np.array([row is not None for row in nfa.rows])
        plain[[*nfa.empty, *nfa.ends, nfa.final]] = False
        self.plain = np.append(plain, np.False_)
        self.lone: Ints = np.full(len(nfa.rows) + 1, -1, np.int32)
        self._numbers: dict[Positions, int] = {nfa.start: 0}

    def number(self, state: Positions) -> int:
        """The number of a state, which may be new; -1 for no position."""
        if not state:
            return -1
        if len(state) == 1 and self.plain[state[0]]:
            self.add_plain(np.array(state))
            return int(self.lone[state[0]])
        known = self._numbers.setdefault(state, len(self.found))
        if known == len(self.found):
            self.found.append(state)
        return known

    def add_plain(self, positions: npt.NDArray[np.integer]) -> None:
        """Number the states of some plain positions, those that are new."""
        new = positions[self.lone[positions] < 0]
        self.lone[new] = np.arange(len(self.found), len(self.found) + len(new))
        self.found.extend((position,) for position in new.tolist())


def _moves(nfa: TagNfa, states: _States, layer: list[Positions], symbols: Indices) -> Ints:
    """The target of each move of some states, [states, symbols]; -1 is none. Targets that are new get a number."""
    targets = np.full((len(layer), len(symbols)), -1, np.int32)
    alone: list[int] = []
    rows: list[Ints] = []
    for index, state in enumerate(layer):
        moving = [dense(row) for row in map(nfa.rows.__getitem__, state) if row is not None]
        if len(moving) == 1:
            alone.append(index)
            rows += moving
        elif moving:
            columns, kind = np.unique(np.stack(moving, axis=1)[symbols], axis=0, return_inverse=True)
            numbers = [states.number(nfa.arrive([one for one in column if one >= 0])) for column in columns.tolist()]
            targets[index] = np.array(numbers, np.int32)[kind.reshape(-1)]
    if rows:
        # One position moves, as almost everywhere inside a leaf: all such states of a layer at once.
        moves = np.stack(rows)[:, symbols]
        reached = np.unique(moves[(states.lone[moves] < 0) & (moves >= 0)])
        states.add_plain(reached[states.plain[reached]])
        for position in reached[~states.plain[reached]].tolist():
            states.lone[position] = states.number(nfa.arrive([position]))
        targets[alone] = states.lone[moves]
    return targets


def _symbols(nfa: TagNfa) -> tuple[Indices, Indices]:
    """One byte of each set of bytes that lead to the same position everywhere, and the set of each byte."""
    single = np.zeros(256, np.int64)
    for row in nfa.rows:
        if isinstance(row, dict):
            for byte in row:
                single[byte] = byte + 1
    return equal_rows(np.stack([single, *nfa.columns], axis=1))
