"""The drafter that proposes nothing: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftChunk, DraftRows


class Nothing:
    """Drafts no tokens, so every step decides exactly one token a sequence."""

    name = "none"
    max_draft_tokens = 0

    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        """Do nothing; no row gets a draft budget."""

    def catch_up(self, chunks: Sequence[DraftChunk], table: SlotTable) -> None:
        """Nothing to catch up with: it keeps no cache."""
