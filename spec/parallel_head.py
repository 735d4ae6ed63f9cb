"""``ParallelHead``: drafts all tokens of a round in one pass of a head, in the manner of P-EAGLE.

It differs from `draftline.spec.eagle3` in its rounds only. The pass reads the last K + 1 entries, as there, and one entry for
each draft behind the first. These entries have no token yet, and no hidden state: they have a trained vector for their
distance, and the hidden state of the last entry before them. The next round writes over their keys and values.

A draft does not know the drafts before it, so it is right less often than a sequential head's. In return, a round takes the
time of one pass.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from typing_extensions import override

from draftline.kernels.batch import Inputs
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftRows
from draftline.spec.eagle3 import Eagle3


class ParallelHead(Eagle3):
    """Drafts with a parallel head on the target's device."""

    name = "parallel_head"

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        ops, head, drafts, known = self._ops, self._head, rows.max_drafts, self.max_draft_tokens + 1
        # All drafts of every row that has any. A row's own number only limits where its entries are written.
        every = torch.where(rows.drafts > 0, drafts, 0).to(rows.drafts.dtype)
        query = known + drafts - 1
        gathered = ops.gather_drafts(table, rows.slots, every, drafts - 1, self._block_size, query, shift=1)
        inputs = _predicting(gathered, rows, known, query)
        count = len(gathered.slots)
        token_ids = inputs.batch.token_ids.view(count, query)
        hidden = self._store.read(inputs.batch).view(count, query, -1)
        token_ids[:, known:] = head.mask_ids(drafts)
        hidden[:, known:] = hidden[:, known - 1 : known]
        logits, _ = head.forward(inputs.batch, token_ids.flatten(), hidden.flatten(0, 1), self._cache)
        # As in `DraftModel`: the target applies everything but the temperature.
        ops.draft_sampled(logits, head.target_ids, inputs.slots, inputs.positions, table)


def _predicting(gathered: Inputs, rows: DraftRows, known: int, query: int) -> Inputs:
    """The same entries, of which the last known one and those behind it predict.

    Args:
        gathered: ``query`` entries of each row, of which the last one predicts.
        rows: the rows, of which those without drafts may be left out.
        known: how many of a row's entries have a token and a hidden state.
        query: all of them.
    """
    count, drafts, device = len(gathered.slots), query - known + 1, rows.drafts.device
    own = rows.drafts if count == len(rows.drafts) else rows.drafts[rows.drafts > 0]
    # A row has blocks for its own drafts only. Entries behind them go where the first of them goes: nothing reads it.
    entry = torch.arange(query, device=device)
    last = (own.long() + known)[:, None]
    cache_index = gathered.batch.cache_index.view(count, query).gather(1, torch.minimum(entry, last))
    index = torch.arange(count, device=device)[:, None] * query + entry[known - 1 :]
    ahead = entry[:drafts] - (drafts - 1)
    decided = gathered.positions[:, None]
    positions = torch.where(decided >= 0, decided + ahead, -1)
    batch = replace(gathered.batch, cache_index=cache_index.flatten(), logits_index=index.flatten())
    return Inputs(batch, gathered.slots.repeat_interleave(drafts), positions.flatten())
