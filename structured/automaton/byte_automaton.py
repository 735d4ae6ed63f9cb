"""From a regular expression to a finite automaton over bytes: outlines-core's, pruned, minimised, as a matrix.

outlines-core builds an automaton over any vocabulary. Here its vocabulary is the 256 bytes, since what a real one's
tokens do follows from that, much faster than by asking for each (see `token_automaton`).

Its own way of matching is the leftmost-first one of searching a text: in "a|ab" it would never go on to "ab". With "$"
behind the expression a match has to reach the text's end, which makes the alternatives equal. Such an expression it takes
only if it cannot match nothing, so a byte comes first that is not part of the text.
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
_LEAD = 0x02  # no part of a word, so that "\\b" means at the beginning what it should
_BYTES = Vocabulary(_END, {bytes([byte]): [byte] for byte in range(256)})


class TooManyStatesError(Exception):
    """The automaton, or its tables, would be larger than allowed."""


@dataclass(frozen=True, slots=True)
class ByteAutomaton:
    """A minimal automaton over bytes. State 0 is where a text begins; from every state acceptance can be reached.

    Attributes:
        next: [states + 1, classes] int32; the last row and its number stand for what no text of the language begins with.
        byte_class: [256] uint8, the class of each byte: a column of ``next``.
        accepting: [states] bool.
    """

    next: Ints
    byte_class: npt.NDArray[np.uint8]
    accepting: npt.NDArray[np.bool_]

    @property
    def states(self) -> int:
        """How many there are, without the one that leads nowhere."""
        return len(self.accepting)


def compile_bytes(regex: str, max_states: int) -> ByteAutomaton:
    """The automaton of a regular expression's whole matches, as UTF-8.

    Args:
        regex: in the dialect of Rust's regex crate.
        max_states: the most states it may have before it is minimised.

    Raises:
        InvalidConstraintError: it is not a regular expression, has look-around that no automaton can do, or matches
            nothing at all.
        TooManyStatesError: it has too many states.
    """
    index = _index(regex)
    transitions: dict[int, dict[int, int]] = index.get_transitions()
    if len(transitions) > max_states:
        raise TooManyStatesError(f"it has {len(transitions)} states, of at most {max_states}")
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
    return _tidy(table, accepting)


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


def _tidy(table: Ints, accepting: npt.NDArray[np.bool_]) -> ByteAutomaton:
    """Merge equal bytes, then equal states, and drop states that lead nowhere."""
    classes, byte_class = _equal_columns(table)
    distance = distances(classes, accepting)
    block = _equal_states(classes, distance)
    alive = np.unique(block[np.isfinite(distance)])
    if not len(alive) or not np.isfinite(distance[0]):
        raise InvalidConstraintError("no text matches it")
    # The blocks in a new order: the start's first, those that lead nowhere last, as one.
    rank = np.full(block.max() + 1, len(alive), np.int32)
    rank[alive] = 1 + np.arange(len(alive))
    rank[block[0]] = 0
    rank[alive[np.argsort(rank[alive])]] = np.arange(len(alive))
    representative = np.zeros(len(alive), np.int64)
    named = rank[block]
    # The last state of each block stands for it: they are equal.
    representative[named[named < len(alive)]] = np.flatnonzero(named < len(alive))
    kept = np.full((len(alive) + 1, classes.shape[1]), len(alive), np.int32)
    kept[:-1] = named[classes[representative]]
    columns, merged = _equal_columns(kept)
    return ByteAutomaton(columns, merged[byte_class].astype(np.uint8), accepting[representative])


def _equal_columns(table: Ints) -> tuple[Ints, npt.NDArray[np.int64]]:
    """One column of each kind, and each column's kind."""
    first, kind = equal_rows(table.T)
    return np.ascontiguousarray(table[:, first]), kind


def distances(table: Ints, accepting: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """The fewest moves from each state to an accepting one: [S] float, infinite where there is no way.

    Args:
        table: [S, C] int32, the state that each move leads to.
        accepting: [S] bool.
    """
    states, moves = table.shape
    # Backwards from what accepts, one move at a time. Each state's predecessors lie together in ``sources``.
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
    """Each state's block of states that accept the same (Moore 1956): split until nothing splits any more.

    Where that takes many rounds, as in long bounded repetitions, there is little to merge, and every state stays alone.
    """
    # States at different distances accept different texts, which splits long chains at once.
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
    """The first of each kind of row, and each row's kind."""
    keys = rows.astype(np.int64) @ _FACTORS[: rows.shape[1]]
    _, first, kind = np.unique(keys, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    if not np.array_equal(rows[first][kind], rows):  # two kinds with one key: rare, but not impossible
        _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, kind.reshape(-1)
