"""The drafter that proposes nothing: plain decoding."""

from __future__ import annotations

from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftRows


class Nothing:
    """Drafts no tokens, so every step decides exactly one token a sequence."""

    name = "none"
    max_draft_tokens = 0

    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        """Do nothing; ``rows`` is empty since no row gets a draft budget."""
