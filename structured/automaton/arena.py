"""``AutomatonArena``: allocates the device's constraint table to automata.

The table's size is fixed when the engine starts. An automaton is written into it when an output first needs it. It
stays until its memory is wanted for another: then automata without a running output are evicted, least recently used
first.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftline.kernels.constraints import BUDGETS, DRAFTS, MASK, NEXT, RESERVED, ConstraintTable
from draftline.structured.automaton.draft_table import DraftTable
from draftline.structured.automaton.rows import Ints
from draftline.structured.automaton.token_automaton import TokenAutomaton


@dataclass(frozen=True, slots=True)
class Allocation:
    """The part of a constraint table that holds one automaton. Addresses are indices into ``ConstraintTable.words``.

    Attributes:
        classes: the address of its token classes, and of its first word.
        first: the address of state 0's record.
        stride: words from one state's record to the next.
        end: the address behind its last word.
        masks: the rows of ``ConstraintTable.masks`` that hold its masks.
    """

    classes: int
    first: int
    stride: int
    end: int
    masks: Ints

    def address(self, state: int) -> int:
        """The address of a state's record."""
        return self.first + state * self.stride


@dataclass(slots=True)
class _Resident:
    allocation: Allocation
    users: int = 0


class AutomatonArena:
    """Keeps automata in one constraint table. One thread uses it: the one that launches steps."""

    def __init__(self, table: ConstraintTable) -> None:
        """An empty arena in a new table."""
        self._table = table
        self._residents: OrderedDict[int, _Resident] = OrderedDict()  # by identity, least recently used first
        self._automata: dict[int, TokenAutomaton] = {}  # keeps them alive, so that no identity is used twice
        self._gaps = [(RESERVED, len(table.words))]
        # Masks that were freed, and the first that was never taken: a table of a small vocabulary has millions.
        self._freed_masks: list[int] = []
        self._fresh_masks = 1

    def acquire(self, automaton: TokenAutomaton, drafts: DraftTable) -> Allocation | None:
        """The automaton's allocation, for an output that begins; None if there is no room for it.

        Every output that acquires an automaton must release it.
        """
        resident = self._residents.get(id(automaton))
        if resident is None:
            allocation = self._load(automaton, drafts)
            if allocation is None:
                return None
            resident = self._residents[id(automaton)] = _Resident(allocation)
            self._automata[id(automaton)] = automaton
        self._residents.move_to_end(id(automaton))
        resident.users += 1
        return resident.allocation

    def release(self, automaton: TokenAutomaton) -> None:
        """An output that had acquired the automaton is over."""
        self._residents[id(automaton)].users -= 1

    def check(self) -> None:
        """Assert that every word and every mask is either free or allocated to one automaton (for tests)."""
        spans = sorted([*self._gaps, *((t.allocation.classes, t.allocation.end) for t in self._residents.values())])
        assert spans[0][0] == RESERVED
        assert spans[-1][1] == len(self._table.words)
        assert all(one[1] == other[0] for one, other in itertools.pairwise(spans))
        masks = [*self._freed_masks, *(int(row) for t in self._residents.values() for row in t.allocation.masks)]
        assert sorted(masks) == list(range(1, self._fresh_masks))
        assert self._fresh_masks <= self._table.host_masks
        assert all(resident.users >= 0 for resident in self._residents.values())

    def _load(self, automaton: TokenAutomaton, drafts: DraftTable) -> Allocation | None:
        stride = NEXT + automaton.classes
        classes = -(-len(automaton.token_class) // 2)
        records_end = classes + automaton.states * stride
        size = records_end + _list_words(automaton.budget_first, 2) + _list_words(drafts.first, 1)
        begin = self._room(size, len(automaton.masks))
        if begin is None:
            return None
        masks = self._take_masks(len(automaton.masks))
        allocation = Allocation(begin, begin + classes, stride, begin + size, masks)
        pairs = np.zeros(2 * classes, "<u2")
        pairs[: len(automaton.token_class)] = automaton.token_class
        distances = np.column_stack((automaton.budget_distance, masks[automaton.budget_mask]))
        budgets_at, budgets = _lists(automaton.budget_first, distances, begin + records_end)
        drafts_at, forced = _lists(drafts.first, drafts.tokens[:, None], begin + records_end + len(budgets))
        records = np.empty((automaton.states, stride), np.int32)
        records[:, MASK] = masks[automaton.mask_of]
        records[:, BUDGETS] = np.where(automaton.early, -budgets_at, budgets_at)
        records[:, DRAFTS] = drafts_at
        records[:, NEXT:] = np.where(automaton.next < 0, 0, allocation.first + automaton.next * stride)
        words = np.concatenate((pairs.view("<i4"), records.reshape(-1), budgets, forced))
        self._table.words[begin : begin + size] = self._to_device(words)
        self._table.masks[self._to_device(masks).long()] = self._to_device(automaton.masks)
        return allocation

    def _to_device(self, values: Ints) -> Tensor:
        """Copy to the device in stream order, without waiting."""
        tensor = torch.from_numpy(values)
        device = self._table.words.device
        return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)

    def _room(self, size: int, masks: int) -> int | None:
        """Take ``size`` words, with ``masks`` masks free, evicting others if need be. Returns the address, or None."""
        while True:
            free_masks = len(self._freed_masks) + self._table.host_masks - self._fresh_masks
            begin = self._take(size) if free_masks >= masks else None
            if begin is not None:
                return begin
            unused = next((key for key, resident in self._residents.items() if not resident.users), None)
            if unused is None:
                return None
            allocation = self._residents.pop(unused).allocation
            del self._automata[unused]
            self._freed_masks.extend(allocation.masks.tolist())
            self._free(allocation.classes, allocation.end)

    def _take(self, size: int) -> int | None:
        """Take the first gap that is large enough; its address, or None."""
        for index, (begin, end) in enumerate(self._gaps):
            if end - begin >= size:
                self._gaps[index : index + 1] = [(begin + size, end)] if end - begin > size else []
                return begin
        return None

    def _take_masks(self, count: int) -> Ints:
        """Take masks that are known to be free; their rows."""
        again = min(count, len(self._freed_masks))
        rows = [self._freed_masks.pop() for _ in range(again)]
        rows += range(self._fresh_masks, self._fresh_masks + count - again)
        self._fresh_masks += count - again
        return np.array(rows, np.int32)

    def _free(self, begin: int, end: int) -> None:
        """Give words back, and join the gap with its neighbours."""
        joined: list[tuple[int, int]] = []
        for gap in sorted([*self._gaps, (begin, end)]):
            if joined and joined[-1][1] == gap[0]:
                joined[-1] = joined[-1][0], gap[1]
            else:
                joined.append(gap)
        self._gaps = joined


def _list_words(first: Ints, width: int) -> int:
    """The number of words that `_lists` returns."""
    return int(np.count_nonzero(np.diff(first))) + width * int(first[-1])


def _lists(first: Ints, values: Ints, begin: int) -> tuple[Ints, Ints]:
    """One list a state: a count and that many values. Returns each list's address (0 for an empty list), and all words.

    Args:
        first: [states + 1]: state s has ``values[first[s]:first[s + 1]]``.
        values: [first[-1], width].
        begin: the address of the first list.
    """
    counts = np.diff(first)
    some = counts > 0
    sizes = np.where(some, 1 + values.shape[1] * counts, 0)
    offsets = np.cumsum(sizes) - sizes
    words = np.empty(int(sizes.sum()), np.int32)
    is_count = np.zeros(len(words), np.bool_)
    is_count[offsets[some]] = True
    words[is_count] = counts[some]
    words[~is_count] = values.reshape(-1)
    return np.where(some, begin + offsets, 0).astype(np.int32), words
