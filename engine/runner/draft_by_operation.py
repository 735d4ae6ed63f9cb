"""``DraftByOperation``: drafts for any rows, one operation after the other."""

from __future__ import annotations

import numpy as np

from draftline.engine.request.sequence import Row
from draftline.engine.runner.transfer import upload
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import Drafter, DraftRows


class DraftByOperation:
    """Launches a drafter's operations from the host, shaped as the rows are."""

    def __init__(self, drafter: Drafter, table: SlotTable) -> None:
        """Both are of one device."""
        self._drafter = drafter
        self._table = table

    def fits(self, rows: tuple[Row, ...]) -> bool:
        """Any rows."""
        return True

    def propose(self, rows: tuple[Row, ...]) -> None:
        """See `DraftPass.propose`."""
        device = self._table.tokens.device
        slots = upload(np.array([row.slot for row in rows], np.int64), device)
        wanted = upload(np.array([row.drafts for row in rows], np.int32), device)
        self._drafter.propose(DraftRows(slots, wanted, max(row.drafts for row in rows)), self._table)
