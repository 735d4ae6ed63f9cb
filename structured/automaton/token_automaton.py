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

from draftline.structured.automaton.byte_automaton import ByteAutomaton
from draftline.structured.automaton.graph import StateGraph
from draftline.structured.automaton.limits import AutomatonTooLargeError
from draftline.structured.automaton.rows import Indices, Ints, SparseRows, equal_rows, offsets, spans
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.matcher import packed

_CHUNK = 1 << 22
"""Moves that are looked up at once, and more by one class's. Bounds the memory."""

_MASK_CHUNK = 64
"""Masks that are packed at once."""


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
    kinds, rows = _classify(automaton, tokens, max_bytes)
    reached, table, distance = _restrict(automaton, rows, max_bytes)
    end = len(reached)
    eos = table.shape[1] - 1
    # One more state, the end, and one more class, end-of-sequence, which leads there.
    accepting = np.append(automaton.accepting[reached], True)
    table[accepting, eos] = end
    kinds[list(eos_ids)] = eos
    used = np.unique(kinds)
    token_class = np.searchsorted(used, kinds).astype(np.uint16)
    table = np.ascontiguousarray(table[:, used])
    if table.nbytes > max_bytes:
        raise AutomatonTooLargeError(f"its tables take {table.nbytes} bytes; at most {max_bytes} are allowed")
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
    budget_first, budget_distance, budget_mask = _budgets(table, early, distance, to_boundary, budgeted, masks)
    forced_byte, byte_next = _forced(automaton, reached)
    return TokenAutomaton(
        token_class=token_class,
        next=table,
        mask_of=mask_of,
        masks=masks.packed(),
        accepting=accepting,
        distance=distance,
        forced_byte=forced_byte,
        byte_next=byte_next,
        budget_first=budget_first,
        budget_distance=budget_distance,
        budget_mask=budget_mask,
        early=early,
        early_distance=int(to_boundary[0]) if early[0] else 0,
        late_distance=late_distance,
    )


def _classify(automaton: ByteAutomaton, tokens: Sequence[bytes], max_bytes: int) -> tuple[Indices, SparseRows]:
    """Each token's class, and the moves of each class. Class 0 leads nowhere."""
    states, symbols = automaton.states, automaton.next.shape[1]
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    starts = np.cumsum(lengths) - lengths
    text = automaton.byte_class[np.frombuffer(b"".join(tokens), np.uint8)].astype(np.int64)
    token_class = np.zeros(len(tokens), np.int64)
    found: list[SparseRows] = [_NOWHERE]
    count = size = 0
    # The tokens with bytes left, the prefix class of each, and the moves of each prefix class.
    alive = np.flatnonzero(lengths)
    kind = np.zeros(len(alive), np.int64)
    stay = np.arange(states, dtype=np.int32)
    kinds = SparseRows(np.array([0, states]), stay, stay)
    length = 0
    while len(alive):
        steps, step_of = np.unique(kind * symbols + text[starts[alive] + length], return_inverse=True)
        kinds, kind = _advance(automaton.next, kinds, steps)
        kind = kind[step_of.reshape(-1)]
        length += 1
        # Prefix class 0 leads nowhere.
        over = (lengths[alive] == length) & (kind > 0)
        ended, ending = np.unique(kind[over], return_inverse=True)
        token_class[alive[over]] = 1 + count + ending.reshape(-1)
        found.append(kinds.take(ended))
        count += len(ended)
        size += len(found[-1].source)
        if 8 * size > max_bytes:
            raise AutomatonTooLargeError(f"its tokens form too many classes over its {states} states")
        on = (lengths[alive] > length) & (kind > 0)
        alive, kind = alive[on], kind[on]
    # Tokens of different lengths can have the same moves.
    rows, merged = SparseRows.joined(found).distinct()
    return merged[token_class], rows


_NOWHERE = SparseRows(np.zeros(2, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32))


def _advance(table: Ints, kinds: SparseRows, steps: Indices) -> tuple[SparseRows, Indices]:
    """The distinct moves of prefix classes after one more byte, those that lead nowhere first, and which each step has.

    Args:
        table: `ByteAutomaton.next`.
        kinds: the moves of the prefix classes.
        steps: a prefix class, times the number of symbols, plus the symbol that follows.
    """
    dead, symbols = len(table) - 1, table.shape[1]
    before, symbol = np.divmod(steps, symbols)
    flat = table.reshape(-1)
    parts: list[SparseRows] = []
    numbers: list[Indices] = []
    size = np.diff(kinds.first)[before]
    chunk = np.cumsum(size) // _CHUNK
    for part in np.split(np.arange(len(steps)), 1 + np.flatnonzero(np.diff(chunk))):
        at = spans(kinds.first[before[part]], size[part])
        target = flat[kinds.target[at] * symbols + np.repeat(symbol[part].astype(np.int32), size[part])]
        on = np.flatnonzero(target != dead)
        counts = np.diff(np.searchsorted(on, offsets(size[part])))
        rows, number = SparseRows(offsets(counts), kinds.source[at[on]], target[on]).distinct()
        numbers.append(number + sum(map(len, parts)))
        parts.append(rows)
    result, kind = SparseRows.joined(parts).distinct()
    return result, kind[np.concatenate(numbers)]


def _restrict(automaton: ByteAutomaton, rows: SparseRows, max_bytes: int) -> tuple[Indices, Ints, Ints]:
    """The states that tokens reach and can complete, the initial one first, and the moves among them, renumbered.

    Returns:
        Those states; the moves: [states + 1, classes + 1], with an empty row for the end and an empty column for
        end-of-sequence; and the distance of each to acceptance, the end's included.
    """
    states, classes = automaton.states, len(rows)
    column = np.repeat(np.arange(classes), np.diff(rows.first))
    graph = StateGraph.of(states, rows.source, rows.target)
    distance = graph.distances(automaton.accepting)
    if np.isinf(distance[0]):
        raise InvalidConstraintError("no text that matches it can be written in the model's tokens")
    kept = np.flatnonzero(graph.reachable(0) & np.isfinite(distance))
    number = np.full(states, -1, np.int32)
    number[kept] = np.arange(len(kept))
    if 4 * len(kept) * classes > 16 * max_bytes:
        raise AutomatonTooLargeError(f"its tokens form {classes} classes over its {states} states")
    on = (number[rows.source] >= 0) & (number[rows.target] >= 0)
    table = np.full((len(kept) + 1, classes + 1), -1, np.int32)
    table[number[rows.source[on]], column[on]] = number[rows.target[on]]
    return kept, table, np.append(distance[kept], 0).astype(np.int32)


class _Masks:
    """The distinct masks over tokens, built from masks over classes."""

    def __init__(self, token_class: npt.NDArray[np.uint16], max_bytes: int) -> None:
        self._token_class = token_class
        self._max_masks = max_bytes // (4 * -(-len(token_class) // 32))
        self._indices: dict[bytes, int] = {}
        self._rows: list[npt.NDArray[np.bool_]] = []

    def index(self, allowed: npt.NDArray[np.bool_]) -> int:
        """The index of the mask of the tokens in these classes, [classes] bool."""
        key = allowed.tobytes()
        index = self._indices.get(key)
        if index is None:
            if len(self._rows) == self._max_masks:
                raise AutomatonTooLargeError(f"it has more than {self._max_masks} different masks")
            self._rows.append(allowed)
            index = self._indices[key] = len(self._rows) - 1
        return index

    def packed(self) -> Ints:
        """All masks: [masks, ceil(vocab / 32)] int32."""
        allowed = np.stack(self._rows)
        chunks = (allowed[begin : begin + _MASK_CHUNK] for begin in range(0, len(allowed), _MASK_CHUNK))
        return np.concatenate([packed(chunk[:, self._token_class]) for chunk in chunks])


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
