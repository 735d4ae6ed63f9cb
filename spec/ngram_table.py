"""``NGramTable``: n-gram lookup across sequences, in a table of the n-grams that the server has generated.

`NGram` finds nothing in a text that does not repeat itself. The table maps every three tokens seen, in any sequence
that was drafted for, to the token that followed last. It lives on the device, which also updates and reads it; new
entries overwrite old ones. The text of one client can make another's output faster, but never different.
"""

from __future__ import annotations

import torch
from typing_extensions import override

from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import Drafter, DraftRows
from draftline.spec.ngram import MAX_NGRAM


class NGramTable(Drafter):
    """`NGram`, with the table for ends that the sequence itself does not contain in full."""

    name = "ngram_table"

    def __init__(self, max_draft_tokens: int, entries: int, ops: Ops, device: torch.device) -> None:
        """Start with an empty table.

        Args:
            max_draft_tokens: the most tokens that it proposes at once.
            entries: the number of n-grams that the table holds, a power of two.
            ops: the device's operations.
            device: the table's device.
        """
        self.max_draft_tokens = max_draft_tokens
        self._ops = ops
        self._table = torch.zeros((entries, 2), dtype=torch.int32, device=device)

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        self._ops.learn_ngrams(rows.slots, self.max_draft_tokens + 1, self._table, table)
        self._ops.draft_ngram_table(rows.slots, rows.max_drafts, MAX_NGRAM, self._table, table)

    @override
    def forget(self) -> None:
        self._table.zero_()
