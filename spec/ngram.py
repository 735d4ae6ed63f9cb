"""The drafter that looks up how the sequence went on the last time that it had come to the same words."""

from __future__ import annotations

from collections.abc import Sequence

from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftChunk, DraftRows

LONGEST = 4
"""Tokens of the longest end that is looked up."""


class NGram:
    """Prompt lookup decoding (Saxena 2023): no model, no memory, one small kernel."""

    name = "ngram"

    def __init__(self, max_draft_tokens: int, ops: Ops) -> None:
        """``max_draft_tokens`` is the most that is ever drafted at once."""
        self.max_draft_tokens = max_draft_tokens
        self._ops = ops

    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        """See `Drafter.propose`."""
        self._ops.draft_ngram(rows.slots, rows.most, LONGEST, table)

    def catch_up(self, chunks: Sequence[DraftChunk], table: SlotTable) -> None:
        """Nothing to catch up with: it keeps no cache."""
