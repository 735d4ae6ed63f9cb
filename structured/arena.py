"""``ConstraintArena``: which automata a constraint table holds, and where.

The table's room is fixed when the engine starts. An automaton is written into it when an output first needs it, and
stays until the room is wanted for another: then those that no running output has go, the least recently used first.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftline.kernels.constraints import BUDGETS, DRAFTS, MASK, NEXT, RESERVED, ConstraintTable
from draftline.structured.automaton.byte_automaton import Ints
from draftline.structured.automaton.forced_drafts import ForcedDrafts
from draftline.structured.automaton.token_automaton import TokenAutomaton


@dataclass(frozen=True, slots=True)
class Place:
    """Where an automaton is.

    Attributes:
        classes: the address of its token classes.
        first: the address of state 0's record.
        stride: words from one state's record to the next.
        end: where its words end.
        masks: the rows that its masks have.
    """

    classes: int
    first: int
    stride: int
    end: int
    masks: Ints

    def address(self, state: int) -> int:
        """Where a state's record is."""
        return self.first + state * self.stride


@dataclass(slots=True)
class _Tenant:
    place: Place
    users: int = 0


class ConstraintArena:
    """Keeps automata in one constraint table. One thread uses it, the one that launches steps."""

    def __init__(self, table: ConstraintTable) -> None:
        """An arena that is empty, in a table that is new."""
        self._table = table
        self._tenants: OrderedDict[int, _Tenant] = OrderedDict()  # by identity, least recently used first
        self._held: dict[int, TokenAutomaton] = {}  # so that no identity is used twice
        self._gaps = [(RESERVED, len(table.words))]
        self._free_masks = list(range(table.host_masks - 1, 0, -1))

    def enter(self, automaton: TokenAutomaton, drafts: ForcedDrafts) -> Place | None:
        """Where an automaton is, for an output that begins with it; None if there is no room for it.

        Every output that enters has to leave.
        """
        tenant = self._tenants.get(id(automaton))
        if tenant is None:
            place = self._load(automaton, drafts)
            if place is None:
                return None
            tenant = self._tenants[id(automaton)] = _Tenant(place)
            self._held[id(automaton)] = automaton
        self._tenants.move_to_end(id(automaton))
        tenant.users += 1
        return tenant.place

    def leave(self, automaton: TokenAutomaton) -> None:
        """An output that had entered with it is over."""
        self._tenants[id(automaton)].users -= 1

    def check(self) -> None:
        """Assert that words and masks are free or somebody's, and never both (for tests)."""
        spans = sorted([*self._gaps, *((t.place.classes, t.place.end) for t in self._tenants.values())])
        assert spans[0][0] == RESERVED
        assert spans[-1][1] == len(self._table.words)
        assert all(one[1] == other[0] for one, other in itertools.pairwise(spans))
        masks = [*self._free_masks, *(int(row) for t in self._tenants.values() for row in t.place.masks)]
        assert sorted(masks) == list(range(1, self._table.host_masks))
        assert all(tenant.users >= 0 for tenant in self._tenants.values())

    def _load(self, automaton: TokenAutomaton, drafts: ForcedDrafts) -> Place | None:
        stride = NEXT + automaton.classes
        classes = -(-len(automaton.token_class) // 2)
        records_end = classes + automaton.states * stride
        size = records_end + _list_words(automaton.budget_first, 2) + _list_words(drafts.first, 1)
        begin = self._room(size, len(automaton.masks))
        if begin is None:
            return None
        masks = np.array([self._free_masks.pop() for _ in automaton.masks], np.int32)
        place = Place(begin, begin + classes, stride, begin + size, masks)
        pairs = np.zeros(2 * classes, "<u2")
        pairs[: len(automaton.token_class)] = automaton.token_class
        distances = np.column_stack((automaton.budget_distance, masks[automaton.budget_mask]))
        budgets_at, budgets = _lists(automaton.budget_first, distances, begin + records_end)
        drafts_at, forced = _lists(drafts.first, drafts.tokens[:, None], begin + records_end + len(budgets))
        records = np.empty((automaton.states, stride), np.int32)
        records[:, MASK] = masks[automaton.mask_of]
        records[:, BUDGETS] = budgets_at
        records[:, DRAFTS] = drafts_at
        records[:, NEXT:] = np.where(automaton.next < 0, 0, place.first + automaton.next * stride)
        words = np.concatenate((pairs.view("<i4"), records.reshape(-1), budgets, forced))
        self._table.words[begin : begin + size] = self._to_device(words)
        self._table.masks[self._to_device(masks).long()] = self._to_device(automaton.masks)
        return place

    def _to_device(self, values: Ints) -> Tensor:
        """Copied in the stream's order, without waiting for it."""
        tensor = torch.from_numpy(values)
        device = self._table.words.device
        return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)

    def _room(self, size: int, masks: int) -> int | None:
        """The address of so many words, with as many masks free; what is not in use goes if need be."""
        while True:
            begin = self._take(size) if len(self._free_masks) >= masks else None
            if begin is not None:
                return begin
            unused = next((key for key, tenant in self._tenants.items() if not tenant.users), None)
            if unused is None:
                return None
            place = self._tenants.pop(unused).place
            del self._held[unused]
            self._free_masks.extend(place.masks.tolist())
            self._free(place.classes, place.end)

    def _take(self, size: int) -> int | None:
        """The first gap's beginning that is large enough, now taken."""
        for at, (begin, end) in enumerate(self._gaps):
            if end - begin >= size:
                self._gaps[at : at + 1] = [(begin + size, end)] if end - begin > size else []
                return begin
        return None

    def _free(self, begin: int, end: int) -> None:
        """Give words back, joined with the gaps beside them."""
        joined: list[tuple[int, int]] = []
        for gap in sorted([*self._gaps, (begin, end)]):
            if joined and joined[-1][1] == gap[0]:
                joined[-1] = joined[-1][0], gap[1]
            else:
                joined.append(gap)
        self._gaps = joined


def _list_words(first: Ints, width: int) -> int:
    """How many words `_lists` makes."""
    return int(np.count_nonzero(np.diff(first))) + width * int(first[-1])


def _lists(first: Ints, values: Ints, begin: int) -> tuple[Ints, Ints]:
    """Each state's values behind their count: where each list is, 0 for none, and the lists' words.

    Args:
        first: [states + 1]: state s's values are those from first[s] to first[s + 1].
        values: [first[-1], width].
        begin: the address of the first list.
    """
    counts = np.diff(first)
    some = counts > 0
    sizes = np.where(some, 1 + values.shape[1] * counts, 0)
    at = np.cumsum(sizes) - sizes
    words = np.empty(int(sizes.sum()), np.int32)
    is_count = np.zeros(len(words), np.bool_)
    is_count[at[some]] = True
    words[is_count] = counts[some]
    words[~is_count] = values.reshape(-1)
    return np.where(some, begin + at, 0).astype(np.int32), words
