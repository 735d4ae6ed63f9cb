"""``ParallelHead``: drafts all tokens of a round in one pass of a head, in the manner of P-EAGLE.

It differs from `draftline.spec.eagle3` in its rounds only. The pass reads the last K + 1 entries, as there, and one
entry for each draft behind the first. These entries have no token yet, and no hidden state: they have a trained vector
for their distance, and the hidden state of the last entry before them. The next round writes over their keys and
values.

A draft does not know the drafts before it, so it is right less often than a sequential head's. In return, a round takes
the time of one pass.
"""

from __future__ import annotations

from typing_extensions import override

from draftline.kernels.batch import DraftQuery
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftRows
from draftline.spec.eagle3 import Eagle3


class ParallelHead(Eagle3):
    """Drafts with a parallel head on the target's device."""

    name = "parallel_head"

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        ops, head, known, ahead = self._ops, self._head, self.max_draft_tokens + 1, rows.max_drafts - 1
        # All drafts of every row that has any. A row's own number only limits where its entries are written.
        query = DraftQuery(known, shift=1, ahead=ahead, ahead_id=head.first_mask_id)
        (inputs,) = rows.passes(ops, table, query, 1, self._cache)
        batch = inputs.batch
        states = self._store.read(batch)
        of_entries = states.view(len(batch.context_lens), query.entries, states.shape[1])
        of_entries[:, known:] = of_entries[:, known - 1 : known]
        logits, _ = head.forward(batch, batch.token_ids, states, self._cache)
        # As in `DraftModel`: the target applies everything but the temperature.
        ops.draft_sampled(logits, head.target_ids, inputs.slots, inputs.positions, table, self._constraints)
