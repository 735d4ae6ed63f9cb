"""From an automaton over bytes to one over tokens, as tables in which every question is a look-up.

Tokens that do the same in every state are one class, and most do: where a string may go on, all tokens of plain letters
of one length are alike. So the states' moves are found for kinds of beginnings of tokens, byte by byte, merging those
that do the same everywhere, and never for all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftline.structured.automaton.byte_automaton import (
    ByteAutomaton,
    Ints,
    TooManyStatesError,
    distances,
    equal_rows,
)
from draftline.structured.errors import InvalidConstraintError

_CHUNK = 1 << 23
"""Moves that are looked up at once; bounds the memory."""


@dataclass(frozen=True, slots=True)
class TokenAutomaton:
    """An automaton over tokens, of which end-of-sequence is one.

    State 0 is where an output begins. The last state is the end: end-of-sequence leads there from every state where the
    text so far is complete, and there nothing but end-of-sequence may follow, so that no mask is ever empty. From every
    state an accepting one can be reached.

    Attributes:
        token_class: [vocab] uint16, each token's class; class 0 is allowed nowhere.
        next: [states, classes] int32, the state that a token of the class leads to; -1 where it is not allowed.
        mask_of: [states] int32, which mask says what each state allows.
        masks: [masks, ceil(vocab / 32)] int32, distinct sets of allowed tokens: token t is bit t % 32 of word t // 32.
        accepting: [states] bool, whether the text so far is complete.
        distance: [states] int32, the fewest tokens from each state to an accepting one.
        forced_byte: [states] int16, the only byte that can follow, where nothing else can, not even the end; else -1.
        byte_next: [states] int32, where that byte leads; -1 where none is forced.
        budget_first: [states + 1] int32: state s's entries in the next two are those from budget_first[s] on.
        budget_distance: int32, ascending within a state: distances to acceptance that the state's tokens lead to.
        budget_mask: int32, which mask allows those of the state's tokens that lead no further away than that.
    """

    token_class: npt.NDArray[np.uint16]
    next: Ints
    mask_of: Ints
    masks: Ints
    accepting: npt.NDArray[np.bool_]
    distance: Ints
    forced_byte: npt.NDArray[np.int16]
    byte_next: Ints
    budget_first: Ints
    budget_distance: Ints
    budget_mask: Ints

    @property
    def states(self) -> int:
        """How many there are, the end included."""
        return len(self.accepting)

    @property
    def classes(self) -> int:
        """How many classes of tokens there are."""
        return int(self.next.shape[1])

    @property
    def nbytes(self) -> int:
        """The tables' size."""
        return (
            self.token_class.nbytes
            + self.next.nbytes
            + self.masks.nbytes
            + 24 * self.states
            + 8 * len(self.budget_mask)
        )


def compile_tokens(
    automaton: ByteAutomaton, tokens: Sequence[bytes], eos_ids: Sequence[int], *, budgets: bool, max_bytes: int
) -> TokenAutomaton:
    """The automaton of a vocabulary.

    Args:
        automaton: over bytes.
        tokens: each token's bytes; one without any is allowed nowhere.
        eos_ids: the tokens that end an output.
        budgets: whether to make the masks by distance, which texts that must be complete in time need.
        max_bytes: the most that the tables may take.

    Raises:
        InvalidConstraintError: no text of the language can be written in these tokens.
        TooManyStatesError: the tables would be too large.
    """
    kinds, moves = _classify(automaton, tokens, max_bytes)
    reached, moves = _restrict(automaton, moves)
    end = len(reached)
    eos = moves.shape[1]
    # Two more: the end, to which the class of end-of-sequence leads.
    table = np.full((end + 1, eos + 1), -1, np.int32)
    table[:end, :eos] = moves
    accepting = np.append(automaton.accepting[reached], True)
    table[accepting, eos] = end
    kinds[list(eos_ids)] = eos
    used = np.unique(kinds)
    token_class = np.searchsorted(used, kinds).astype(np.uint16)
    table = np.ascontiguousarray(table[:, used])
    if table.nbytes > max_bytes:
        raise TooManyStatesError(f"its tables take {table.nbytes} bytes, of at most {max_bytes}")
    distance = _distance(table, accepting)
    masks = _Masks(token_class, max_bytes)
    allowed = table >= 0
    first, kind = equal_rows(np.packbits(allowed, axis=1))
    mask_of = np.array([masks.number(allowed[row]) for row in first], np.int32)[kind]
    budget = _budgets(table, distance, masks) if budgets else (np.zeros(end + 2, np.int32), _NONE, _NONE)
    forced_byte, byte_next = _forced(automaton, reached)
    return TokenAutomaton(
        token_class, table, mask_of, masks.packed(), accepting, distance, forced_byte, byte_next, *budget
    )


_NONE = np.zeros(0, np.int32)


def _classify(automaton: ByteAutomaton, tokens: Sequence[bytes], max_bytes: int) -> tuple[npt.NDArray[np.int64], Ints]:
    """Each token's class, and [states, classes] the state that each leads to; class 0 leads nowhere."""
    states, symbols = automaton.next.shape[0] - 1, automaton.next.shape[1]
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    starts = np.cumsum(lengths) - lengths
    text = automaton.byte_class[np.frombuffer(b"".join(tokens), np.uint8)].astype(np.int64)
    token_class = np.zeros(len(tokens), np.int64)
    nowhere = np.full((1, states), states, np.int32)
    found = [nowhere]
    count = 1
    # The tokens that are not over yet, which kind of beginning each has, and what the kinds do: a row of states.
    alive = np.flatnonzero(lengths)
    kind = np.zeros(len(alive), np.int64)
    kinds = np.arange(states, dtype=np.int32)[None]
    place = 0
    while len(alive):
        steps, step_of = np.unique(kind * symbols + text[starts[alive] + place], return_inverse=True)
        kinds, kind = _advance(automaton.next, kinds, steps, step_of.reshape(-1))
        place += 1
        over = lengths[alive] == place
        ended, ending = np.unique(kind[over], return_inverse=True)
        # Row 0 of the kinds leads nowhere, as class 0 does.
        names = np.where(ended > 0, count - (ended[0] == 0 if len(ended) else 0) + np.arange(len(ended)), 0)
        token_class[alive[over]] = names[ending.reshape(-1)]
        found.append(kinds[ended[ended > 0]])
        count += len(found[-1])
        if count * states * 4 > 16 * max_bytes:
            raise TooManyStatesError(f"its tokens do too many different things in its {states} states")
        on = ~over & (kind > 0)
        alive, kind = alive[on], kind[on]
    # Tokens of different lengths can do the same.
    rows = np.concatenate(found)
    first, merged = equal_rows(rows)
    order = np.argsort(np.argsort(np.where(first == 0, -1, first)))
    columns = np.empty((states, len(first)), np.int32)
    columns[:, order] = rows[first].T
    return order[merged][token_class], np.where(columns == states, -1, columns)


def _advance(
    table: Ints, kinds: Ints, steps: npt.NDArray[np.int64], step_of: npt.NDArray[np.int64]
) -> tuple[Ints, npt.NDArray[np.int64]]:
    """What the kinds do after one more byte: the distinct rows, the first leading nowhere, and each token's."""
    symbols = table.shape[1]
    before, symbol = np.divmod(steps, symbols)
    flat = table.reshape(-1)
    nowhere = np.full((1, kinds.shape[1]), len(table) - 1, np.int32)
    parts, sizes = [nowhere], [1]
    number = np.empty(len(steps), np.int64)
    chunk = max(1, _CHUNK // kinds.shape[1])
    for begin in range(0, len(steps), chunk):
        part = slice(begin, begin + chunk)
        rows = flat[kinds[before[part]] * symbols + symbol[part, None].astype(np.int32)]
        first, kind = equal_rows(rows)
        number[part] = sum(sizes) + kind
        parts.append(rows[first])
        sizes.append(len(first))
    distinct = np.concatenate(parts)
    first, kind = equal_rows(distinct)
    # The row that leads nowhere first, whatever the order that the others are in.
    order = np.argsort(np.argsort(np.where(first == 0, -1, first)))
    result = np.empty((len(first), distinct.shape[1]), np.int32)
    result[order] = distinct[first]
    return result, order[kind][number][step_of]


def _restrict(automaton: ByteAutomaton, moves: Ints) -> tuple[npt.NDArray[np.int64], Ints]:
    """The states that tokens reach and can complete, the start first, and the moves among them by these numbers."""
    states = len(moves)
    dead = np.append(np.where(moves < 0, states, moves), np.full((1, moves.shape[1]), states), axis=0)
    far = np.isinf(distances(dead.astype(np.int32), np.append(automaton.accepting, False)))
    if far[0]:
        raise InvalidConstraintError("no text that matches it can be written in the model's tokens")
    dead[far[dead]] = states
    reached = np.zeros(states + 1, np.bool_)
    front = np.zeros(1, np.int64)
    while len(front):
        reached[front] = True
        targets = np.unique(dead[front])
        front = targets[~reached[targets] & (targets < states)]
    kept = np.flatnonzero(reached[:states])
    number = np.full(states + 1, -1, np.int32)
    number[kept] = np.arange(len(kept))
    return kept, number[dead[kept]]


def _distance(table: Ints, accepting: npt.NDArray[np.bool_]) -> Ints:
    """[states] int32, see `TokenAutomaton.distance`."""
    nowhere = len(table)
    closed = np.append(np.where(table < 0, nowhere, table), np.full((1, table.shape[1]), nowhere), axis=0)
    return distances(closed.astype(np.int32), np.append(accepting, False))[:-1].astype(np.int32)


class _Masks:
    """The distinct masks over tokens, from allowed classes."""

    def __init__(self, token_class: npt.NDArray[np.uint16], max_bytes: int) -> None:
        self._token_class = token_class
        self._row_bytes = 4 * -(-len(token_class) // 32)
        self._most = max_bytes // self._row_bytes
        self._numbers: dict[bytes, int] = {}
        self._rows: list[npt.NDArray[np.uint8]] = []

    def number(self, allowed: npt.NDArray[np.bool_]) -> int:
        """The number of the mask of the tokens in these classes, [classes] bool."""
        key = allowed.tobytes()
        number = self._numbers.get(key)
        if number is None:
            if len(self._rows) == self._most:
                raise TooManyStatesError(f"it has more than {self._most} different masks")
            row = np.zeros(self._row_bytes, np.uint8)
            bits = np.packbits(allowed[self._token_class], bitorder="little")
            row[: len(bits)] = bits
            self._rows.append(row)
            number = self._numbers[key] = len(self._rows) - 1
        return number

    def packed(self) -> Ints:
        """All of them."""
        return np.stack(self._rows).view("<i4").astype(np.int32, copy=False)


def _budgets(table: Ints, distance: Ints, masks: _Masks) -> tuple[Ints, Ints, Ints]:
    """See `TokenAutomaton.budget_first` and what follows it."""
    ends = len(table) - 1
    # Ending now takes nothing, wherever it is allowed.
    after = np.where(table < 0, np.iinfo(np.int32).max, np.where(table == ends, 0, distance[table]))
    first, needs, which = [0], [], []
    for row in after:
        for most in np.unique(row[row < np.iinfo(np.int32).max]):
            needs.append(most)
            which.append(masks.number(row <= most))
        first.append(len(needs))
    return np.array(first, np.int32), np.array(needs, np.int32), np.array(which, np.int32)


def _forced(automaton: ByteAutomaton, reached: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int16], Ints]:
    """See `TokenAutomaton.forced_byte` and ``byte_next``."""
    nowhere = automaton.states
    follows = automaton.next[reached] != nowhere
    sizes = np.bincount(automaton.byte_class, minlength=automaton.next.shape[1])
    number = np.full(nowhere + 1, -1, np.int32)
    number[reached] = np.arange(len(reached))
    symbol = follows.argmax(axis=1)
    target = number[automaton.next[reached, symbol]]
    forced = (follows @ sizes == 1) & ~automaton.accepting[reached] & (target >= 0)
    byte_of = np.zeros(automaton.next.shape[1], np.int16)
    byte_of[automaton.byte_class] = np.arange(256)
    return (
        np.append(np.where(forced, byte_of[symbol], -1), -1).astype(np.int16),
        np.append(np.where(forced, target, -1), -1).astype(np.int32),
    )
