"""N-gram lookup that also knows how other sequences went on: a table of the n-grams that the server has generated.

Looking up a sequence's own end (`ngram`) finds nothing in a text that does not repeat itself. The table maps every three
tokens that were seen to the one that followed last, in any sequence that was drafted for; it lives on the device, is
learned and read there, and forgets by being overwritten. What one client's text teaches can make another's faster, never
different.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftChunk, DraftRows
from draftline.spec.ngram import LONGEST


class NGramTable:
    """`NGram` with a table behind it, for ends that the sequence has not seen in full."""

    name = "ngram_table"

    def __init__(self, max_draft_tokens: int, entries: int, ops: Ops, device: torch.device) -> None:
        """An empty table.

        Args:
            max_draft_tokens: the most that is ever drafted at once.
            entries: how many n-grams it holds, a power of two.
            ops: the device's operations.
            device: where the table is.
        """
        self.max_draft_tokens = max_draft_tokens
        self._ops = ops
        self._table = torch.zeros((entries, 2), dtype=torch.int32, device=device)

    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        """See `Drafter.propose`."""
        self._ops.learn_ngrams(rows.slots, self.max_draft_tokens + 1, self._table, table)
        self._ops.draft_ngram_table(rows.slots, rows.most, LONGEST, self._table, table)

    def catch_up(self, chunks: Sequence[DraftChunk], table: SlotTable) -> None:
        """Nothing to catch up with: it keeps no cache."""
