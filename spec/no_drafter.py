"""``NoDrafter``: speculative decoding is off. The step has no branch for that."""

from __future__ import annotations

from typing_extensions import override

from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import Drafter, DraftRows


class NoDrafter(Drafter):
    """Proposes nothing: every step decides exactly one token a sequence."""

    name = "none"
    max_draft_tokens = 0

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        pass
