"""``LookupFirst``: n-gram lookup where a sequence repeats itself, and another drafter where it does not.

A head knows the text that comes next in general, and lookup knows the names and phrases of this text. Where the last three
tokens have occurred before, their continuation is right more often than a small head, and all of it is known at once.
"""

from __future__ import annotations

from typing_extensions import override

from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import Drafter, DraftRows, WrappedDrafter
from draftline.spec.ngram import MAX_NGRAM, NGram

_LEAST = 3
"""Tokens of the end that must have occurred before. With the embedded model's head, two and four decided fewer tokens a step."""


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
