"""From a regular expression to a finite automaton over bytes: built by outlines-core, then pruned and minimised.

outlines-core builds an automaton over any vocabulary. Here the vocabulary is the 256 bytes: `token_automaton` derives
the moves of real tokens from it, much faster than outlines-core would.

outlines-core matches leftmost-first, as in searching: "a|ab" would never match "ab". A "$" behind the expression makes
every match reach the end of the text, which makes the alternatives equal. outlines-core accepts "$" only behind an
expression that cannot match the empty text, so the expression starts with a byte that is not part of the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from outlines_core import Index, Vocabulary

from draftline.structured.automaton.regex_anchors import without_outer_anchors
from draftline.structured.errors import InvalidConstraintError

Ints = npt.NDArray[np.int32]

_END = 256
_LEAD = 0x02  # not a word character, so that "\\b" keeps its meaning at the beginning
_BYTES = Vocabulary(_END, {bytes([byte]): [byte] for byte in range(256)})


class AutomatonTooLargeError(Exception):
    """Compiling the automaton would exceed a limit of size, time or memory."""


@dataclass(frozen=True, slots=True)
class ByteAutomaton:
    """A minimal automaton over bytes. State 0 is the initial state; an accepting state can be reached from every state.

    Attributes:
        next: [states + 1, classes] int32. The last row is the dead state, from which no accepting state can be reached.
        byte_class: [256] uint8, the class of each byte, which is its column of ``next``.
        accepting: [states] bool.
        early: [states] bool, whether the text is still before its boundary, such as the end of reasoning; None without one.
        boundary: the state right at the boundary; None without one.
    """

    next: Ints
    byte_class: npt.NDArray[np.uint8]
    accepting: npt.NDArray[np.bool_]
    early: npt.NDArray[np.bool_] | None = None
    boundary: int | None = None

    @property
    def states(self) -> int:
        """The number of states, without the dead state."""
        return len(self.accepting)


def compile_bytes(regex: str, max_states: int) -> ByteAutomaton:
    """The automaton of the whole matches of a regular expression, in UTF-8.

    Args:
        regex: in the dialect of Rust's regex crate.
        max_states: the most states before minimisation.

    Raises:
        InvalidConstraintError: it is malformed, has look-around (which automata cannot do), or matches nothing.
        AutomatonTooLargeError: it has too many states.
    """
    index = _index(regex)
    transitions: dict[int, dict[int, int]] = index.get_transitions()
    if len(transitions) > max_states:
        raise AutomatonTooLargeError(f"it has {len(transitions)} states; at most {max_states} are allowed")
    begin = transitions.pop(index.get_initial_state())[_LEAD]
    number = {begin: 0}
    for state in transitions:
        number.setdefault(state, len(number))
    for targets in transitions.values():
        for target in targets.values():
            number.setdefault(target, len(number))
    dead = len(number)
    table = np.full((dead + 1, 256), dead, np.int32)
    for state, targets in transitions.items():
        row = table[number[state]]
        for byte, target in targets.items():
            if byte != _END:
                row[byte] = number[target]
    accepting = np.zeros(dead + 1, np.bool_)
    accepting[[number[state] for state in index.get_final_states() if state in number]] = True
    return minimised(table, accepting)


def _index(regex: str) -> Index:
    try:
        return Index(rf"\x{_LEAD:02x}(?:{without_outer_anchors(regex)})$", _BYTES)
    except InvalidConstraintError:
        raise
    except ValueError as error:
        message = str(error)
    if "Found no transitions" in message:
        raise InvalidConstraintError("no text matches it")
    raise InvalidConstraintError(f"not a supported regular expression: {message}")


def minimised(
    table: Ints,
    accepting: npt.NDArray[np.bool_],
    early: npt.NDArray[np.bool_] | None = None,
    boundary: int | None = None,
) -> ByteAutomaton:
    """Merge equivalent bytes, then equivalent states, and drop dead states.

    Args:
        table: [S, 256] int32. State 0 is the initial one.
        accepting: [S] bool.
        early: [S] bool, see `ByteAutomaton`: these states stay apart from the others.
        boundary: see `ByteAutomaton`.

    Raises:
        InvalidConstraintError: no accepting state can be reached.
    """
    classes, byte_class = _equal_columns(table)
    distance = distances(classes, accepting)
    apart = distance if early is None else np.where(early, -1 - distance, distance)
    block = _equal_states(classes, apart)
    alive = np.unique(block[np.isfinite(distance)])
    if not len(alive) or not np.isfinite(distance[0]):
        raise InvalidConstraintError("no text matches it")
    # The blocks in a new order: that of the initial state first, the dead ones last, as one.
    rank = np.full(block.max() + 1, len(alive), np.int32)
    rank[alive] = 1 + np.arange(len(alive))
    rank[block[0]] = 0
    rank[alive[np.argsort(rank[alive])]] = np.arange(len(alive))
    representative = np.zeros(len(alive), np.int64)
    named = rank[block]
    # The last state of each block represents it: its states are equivalent.
    representative[named[named < len(alive)]] = np.flatnonzero(named < len(alive))
    kept = np.full((len(alive) + 1, classes.shape[1]), len(alive), np.int32)
    kept[:-1] = named[classes[representative]]
    columns, merged = _equal_columns(kept)
    return ByteAutomaton(
        columns,
        merged[byte_class].astype(np.uint8),
        accepting[representative],
        None if early is None else early[representative],
        None if boundary is None else int(named[boundary]),
    )


def _equal_columns(table: Ints) -> tuple[Ints, npt.NDArray[np.int64]]:
    """The distinct columns, and the index among them of each column."""
    first, kind = equal_rows(table.T)
    return np.ascontiguousarray(table[:, first]), kind


def distances(table: Ints, accepting: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """The fewest moves from each state to an accepting one: [S] float, infinite where none is reachable.

    Args:
        table: [S, C] int32, the target of each move.
        accepting: [S] bool.
    """
    states, moves = table.shape
    # Breadth first, backwards from the accepting states. The predecessors of a state are contiguous in ``sources``.
    pairs = np.unique(np.repeat(np.arange(states, dtype=np.int64), moves) + table.reshape(-1).astype(np.int64) * states)
    targets, sources = np.divmod(pairs, states)
    first = np.searchsorted(targets, np.arange(states + 1))
    distance = np.full(states, np.inf)
    front = np.flatnonzero(accepting)
    step = 0.0
    while len(front):
        distance[front] = step
        step += 1
        counts = first[front + 1] - first[front]
        offsets = np.repeat(first[front] - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
        before = np.unique(sources[offsets + np.arange(counts.sum())])
        front = before[np.isinf(distance[before])]
    return distance


_ROUNDS = 50


def _equal_states(table: Ints, distance: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Each state's block of equivalent states (Moore 1956): split blocks until none splits any more.

    If that takes many rounds, as in long bounded repetitions, there is little to merge, and every state stays alone.
    """
    # States at different distances are not equivalent: this splits long chains at once.
    block = np.unique(distance, return_inverse=True)[1].reshape(-1)
    count = block.max() + 1
    for _ in range(_ROUNDS):
        block = equal_rows(np.column_stack((block, block[table])))[1]
        if block.max() + 1 == count:
            return block
        count = block.max() + 1
    return np.arange(len(table))


_FACTORS = np.random.default_rng(1).integers(1, 2**63, size=1 << 17, dtype=np.int64) | 1


def equal_rows(rows: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The index of the first of each set of equal rows, and the set of each row."""
    keys = rows.astype(np.int64) @ _FACTORS[: rows.shape[1]]
    _, first, kind = np.unique(keys, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    if not np.array_equal(rows[first][kind], rows):  # two different rows have one key: rare, but possible
        _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, kind.reshape(-1)
