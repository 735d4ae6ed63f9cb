"""From an automaton over bytes to an automaton over tokens, as tables in which every question is a look-up.

Tokens with the same moves in every state form a class, and most tokens share one: inside a string, all tokens of n
plain letters are alike. So moves are computed for classes of token prefixes, byte by byte. Prefixes with the same moves
in every state are merged after each byte, and no move is computed for a single token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftline.structured.automaton.byte_automaton import (
    AutomatonTooLargeError,
    ByteAutomaton,
    Ints,
    distances,
    equal_rows,
)
from draftline.structured.errors import InvalidConstraintError

_CHUNK = 1 << 23
"""Moves that are looked up at once. Bounds the memory."""


@dataclass(frozen=True, slots=True)
class TokenAutomaton:
    """An automaton over tokens, end-of-sequence included.

    State 0 is the initial state. The last state is the end: end-of-sequence leads there from every state in which the
    text is complete. In the end state only end-of-sequence may follow, so no mask is ever empty. An accepting state can
    be reached from every state.

    Attributes:
        token_class: [vocab] uint16, each token's class; class 0 is allowed nowhere.
        next: [states, classes] int32, the state that a token of the class leads to; -1 if the token is illegal.
        mask_of: [states] int32, the index of each state's mask.
        masks: [masks, ceil(vocab / 32)] int32, distinct sets of allowed tokens: token t is bit t % 32 of word t // 32.
        accepting: [states] bool, whether the text so far is complete.
        distance: [states] int32, the fewest tokens from each state to an accepting one.
        forced_byte: [states] int16, the byte that must follow; -1 if another byte or the end can follow.
        byte_next: [states] int32, the state that the forced byte leads to; -1 if none is forced.
        budget_first: [states + 1] int32: the next two arrays hold state s at ``budget_first[s]:budget_first[s + 1]``.
        budget_distance: int32, ascending within a state: the distances to acceptance after the state's tokens.
        budget_mask: int32, the index of the mask of those tokens of the state whose distance is at most that.
        early: [states] bool, the states before the boundary of `ByteAutomaton.early`. Their budgets count to the boundary,
            not to acceptance.
        early_distance: the fewest tokens from the initial state to the boundary; 0 without one.
        late_distance: the fewest tokens from the boundary to acceptance; 0 without one.
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
    early: npt.NDArray[np.bool_]
    early_distance: int = 0
    late_distance: int = 0

    @property
    def states(self) -> int:
        """The number of states, the end included."""
        return len(self.accepting)

    @property
    def classes(self) -> int:
        """The number of token classes."""
        return int(self.next.shape[1])

    @property
    def nbytes(self) -> int:
        """The size of the tables."""
        return (
            self.token_class.nbytes
            + self.next.nbytes
            + self.masks.nbytes
            + 24 * self.states
            + 8 * len(self.budget_mask)
        )


def compile_tokens(
    automaton: ByteAutomaton,
    tokens: Sequence[bytes],
    eos_ids: Sequence[int],
    *,
    budgets: bool,
    max_bytes: int,
    early_budgets: bool = False,
) -> TokenAutomaton:
    """The automaton of a vocabulary.

    Args:
        automaton: over bytes.
        tokens: each token's bytes; a token without any is illegal in every state.
        eos_ids: the tokens that end an output.
        budgets: whether to compute the masks by distance, which ``close_within_budget`` needs.
        max_bytes: the largest size of the tables.
        early_budgets: whether to compute the masks by distance to the boundary, for the states before it.

    Raises:
        InvalidConstraintError: no text of the language can be written in these tokens.
        AutomatonTooLargeError: the tables would be too large.
    """
    kinds, moves = _classify(automaton, tokens, max_bytes)
    reached, moves = _restrict(automaton, moves)
    end = len(reached)
    eos = moves.shape[1]
    # One more state, the end, and one more class, end-of-sequence, which leads there.
    table = np.full((end + 1, eos + 1), -1, np.int32)
    table[:end, :eos] = moves
    accepting = np.append(automaton.accepting[reached], True)
    table[accepting, eos] = end
    kinds[list(eos_ids)] = eos
    used = np.unique(kinds)
    token_class = np.searchsorted(used, kinds).astype(np.uint16)
    table = np.ascontiguousarray(table[:, used])
    if table.nbytes > max_bytes:
        raise AutomatonTooLargeError(f"its tables take {table.nbytes} bytes; at most {max_bytes} are allowed")
    distance = _distance(table, accepting)
    masks = _Masks(token_class, max_bytes)
    allowed = table >= 0
    first, kind = equal_rows(np.packbits(allowed, axis=1))
    mask_of = np.array([masks.index(allowed[row]) for row in first], np.int32)[kind]
    early = np.zeros(end + 1, np.bool_)
    to_boundary, late_distance = distance, 0
    if automaton.early is not None and early_budgets:
        early[:end] = automaton.early[reached]
        boundary = np.flatnonzero(reached == automaton.boundary)
        late_distance = int(distance[boundary[0]]) if len(boundary) and budgets else 0
        to_boundary = _early_distance(table, early, distance - late_distance if budgets else np.zeros_like(distance))
    budgeted = np.full(end + 1, budgets) | early
    budget = _budgets(table, early, distance, to_boundary, budgeted, masks)
    forced_byte, byte_next = _forced(automaton, reached)
    return TokenAutomaton(
        token_class,
        table,
        mask_of,
        masks.packed(),
        accepting,
        distance,
        forced_byte,
        byte_next,
        *budget,
        early,
        int(to_boundary[0]) if early[0] else 0,
        late_distance,
    )


def _classify(automaton: ByteAutomaton, tokens: Sequence[bytes], max_bytes: int) -> tuple[npt.NDArray[np.int64], Ints]:
    """Each token's class, and [states, classes] the state that each class leads to. Class 0 leads nowhere."""
    states, symbols = automaton.next.shape[0] - 1, automaton.next.shape[1]
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    starts = np.cumsum(lengths) - lengths
    text = automaton.byte_class[np.frombuffer(b"".join(tokens), np.uint8)].astype(np.int64)
    token_class = np.zeros(len(tokens), np.int64)
    nowhere = np.full((1, states), states, np.int32)
    found = [nowhere]
    count = 1
    # The tokens with bytes left, the prefix class of each, and the moves of each prefix class: a row of states.
    alive = np.flatnonzero(lengths)
    kind = np.zeros(len(alive), np.int64)
    kinds = np.arange(states, dtype=np.int32)[None]
    length = 0
    while len(alive):
        steps, step_of = np.unique(kind * symbols + text[starts[alive] + length], return_inverse=True)
        kinds, kind = _advance(automaton.next, kinds, steps, step_of.reshape(-1))
        length += 1
        over = lengths[alive] == length
        ended, ending = np.unique(kind[over], return_inverse=True)
        # Row 0 of the prefix classes leads nowhere, like class 0.
        names = np.where(ended > 0, count - (ended[0] == 0 if len(ended) else 0) + np.arange(len(ended)), 0)
        token_class[alive[over]] = names[ending.reshape(-1)]
        found.append(kinds[ended[ended > 0]])
        count += len(found[-1])
        if count * states * 4 > 16 * max_bytes:
            raise AutomatonTooLargeError(f"its tokens form too many classes over its {states} states")
        on = ~over & (kind > 0)
        alive, kind = alive[on], kind[on]
    # Tokens of different lengths can have the same moves.
    rows = np.concatenate(found)
    first, merged = equal_rows(rows)
    order = np.argsort(np.argsort(np.where(first == 0, -1, first)))
    columns = np.empty((states, len(first)), np.int32)
    columns[:, order] = rows[first].T
    return order[merged][token_class], np.where(columns == states, -1, columns)


def _advance(
    table: Ints, kinds: Ints, steps: npt.NDArray[np.int64], step_of: npt.NDArray[np.int64]
) -> tuple[Ints, npt.NDArray[np.int64]]:
    """The moves of prefix classes after one more byte: distinct rows, the first one dead, and each token's row."""
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
    # The row that leads nowhere comes first; the others may come in any order.
    order = np.argsort(np.argsort(np.where(first == 0, -1, first)))
    result = np.empty((len(first), distinct.shape[1]), np.int32)
    result[order] = distinct[first]
    return result, order[kind][number][step_of]


def _restrict(automaton: ByteAutomaton, moves: Ints) -> tuple[npt.NDArray[np.int64], Ints]:
    """The states that tokens reach and can complete, the initial one first, and the moves among them, renumbered."""
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
    """`TokenAutomaton.distance`."""
    nowhere = len(table)
    closed = np.append(np.where(table < 0, nowhere, table), np.full((1, table.shape[1]), nowhere), axis=0)
    return distances(closed.astype(np.int32), np.append(accepting, False))[:-1].astype(np.int32)


class _Masks:
    """The distinct masks over tokens, built from masks over classes."""

    def __init__(self, token_class: npt.NDArray[np.uint16], max_bytes: int) -> None:
        self._token_class = token_class
        self._row_bytes = 4 * -(-len(token_class) // 32)
        self._max_masks = max_bytes // self._row_bytes
        self._indices: dict[bytes, int] = {}
        self._rows: list[npt.NDArray[np.uint8]] = []

    def index(self, allowed: npt.NDArray[np.bool_]) -> int:
        """The index of the mask of the tokens in these classes, [classes] bool."""
        key = allowed.tobytes()
        index = self._indices.get(key)
        if index is None:
            if len(self._rows) == self._max_masks:
                raise AutomatonTooLargeError(f"it has more than {self._max_masks} different masks")
            row = np.zeros(self._row_bytes, np.uint8)
            bits = np.packbits(allowed[self._token_class], bitorder="little")
            row[: len(bits)] = bits
            self._rows.append(row)
            index = self._indices[key] = len(self._rows) - 1
        return index

    def packed(self) -> Ints:
        """All masks: [masks, ceil(vocab / 32)] int32."""
        return np.stack(self._rows).view("<i4").astype(np.int32, copy=False)


def _early_distance(table: Ints, early: npt.NDArray[np.bool_], beyond: Ints) -> Ints:
    """The fewest tokens from each state to the boundary.

    Args:
        table: see `TokenAutomaton.next`.
        early: see `TokenAutomaton.early`.
        beyond: [states] what counts for a state behind the boundary: how much more it takes from there than right behind
            it, if that is positive.
    """
    never = np.iinfo(np.int32).max - 1
    distance = np.where(early, never, np.maximum(beyond, 0)).astype(np.int32)
    rows = np.flatnonzero(early)
    targets = table[rows]
    while True:
        best = np.where(targets < 0, never, distance[targets]).min(axis=1)
        after = np.minimum(best, never - 1) + 1
        if np.array_equal(after, distance[rows]):
            return distance
        distance[rows] = after


def _budgets(
    table: Ints,
    early: npt.NDArray[np.bool_],
    distance: Ints,
    to_boundary: Ints,
    budgeted: npt.NDArray[np.bool_],
    masks: _Masks,
) -> tuple[Ints, Ints, Ints]:
    """`TokenAutomaton.budget_first`, ``budget_distance`` and ``budget_mask``.

    Args:
        table: see `TokenAutomaton.next`.
        early: [states] the states whose budgets count to the boundary.
        distance: [states] to acceptance.
        to_boundary: [states] to the boundary.
        budgeted: [states] the states that have budgets.
        masks: receives the masks.
    """
    ends = len(table) - 1
    illegal = np.iinfo(np.int32).max
    first, limits, indices = [0], [], []
    for state, row in enumerate(table):
        if budgeted[state]:
            # Where the end is allowed, its distance is 0.
            left = (to_boundary if early[state] else distance)[row]
            after = np.where(row < 0, illegal, np.where(row == ends, 0, left))
            for limit in np.unique(after[after < illegal]):
                limits.append(limit)
                indices.append(masks.index(after <= limit))
        first.append(len(limits))
    return np.array(first, np.int32), np.array(limits, np.int32), np.array(indices, np.int32)


def _forced(automaton: ByteAutomaton, reached: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int16], Ints]:
    """`TokenAutomaton.forced_byte` and ``byte_next``."""
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
