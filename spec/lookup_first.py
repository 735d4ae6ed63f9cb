"""``LookupFirst``: n-gram lookup where a sequence repeats itself, and another drafter where it does not.

A head knows the text that comes next in general, and lookup knows the names and phrases of this text. Where the last
three tokens have occurred before, their continuation is right more often than a small head, and all of it is known at
once.
"""

from __future__ import annotations

import torch
from typing_extensions import override

from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import Drafter, DraftRows, WrappedDrafter
from draftline.spec.ngram import MAX_NGRAM, NGram

_NOTHING = -1
"""Stands where lookup has no draft."""

_LEAST = 3
"""Tokens of the end that must have occurred before. With the embedded model's head, two and four decided fewer tokens a
step."""


class LookupFirst(WrappedDrafter):
    """Replaces the drafts of another drafter by those of `NGram`, in rows whose end has occurred before."""

    def __init__(self, other: Drafter, ops: Ops) -> None:
        """``other`` drafts where lookup finds nothing."""
        super().__init__(other)
        self.name = f"{NGram.name}+{other.name}"
        self._ops = ops

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        super().propose(rows, table)
        self._ops.draft_ngram(rows.slots, rows.max_drafts, MAX_NGRAM, table, _LEAST)


class LookupInstead(LookupFirst):
    """`LookupFirst` on a CPU, where every pass takes time: rows with looked-up drafts run in the first pass alone.

    That pass keeps the other drafter's cache up to date. A GPU would pad its graphs with these rows, and save nothing.
    """

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        slots = rows.slots[:, None]
        positions = table.lengths[slots] + torch.arange(rows.max_drafts)
        table.tokens[slots, positions] = _NOTHING
        self._ops.draft_ngram(rows.slots, rows.max_drafts, MAX_NGRAM, table, _LEAST)
        looked_up = table.tokens[slots, positions]
        found = looked_up[:, 0] != _NOTHING
        drafts = torch.where(found, rows.drafts.clamp(max=1), rows.drafts)
        self._other.propose(DraftRows(rows.slots, drafts, int(drafts.max())), table)
        table.tokens[slots[found], positions[found]] = looked_up[found]
