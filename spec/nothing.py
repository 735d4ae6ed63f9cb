"""The drafter that proposes nothing: plain decoding."""

from __future__ import annotations

from torch import Tensor

from draftline.kernels.slots import SlotTable


class Nothing:
    """Drafts no tokens, so every step decides exactly one token a sequence."""

    name = "none"
    max_draft_tokens = 0

    def propose(self, slots: Tensor, count: int, table: SlotTable) -> None:
        """Do nothing; no row gets a draft budget."""
