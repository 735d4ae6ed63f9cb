"""``PassByOperation``: any rows at all, one operation after the other."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from draftline.engine.request.sequence import Row
from draftline.engine.runner.decide import Decider
from draftline.engine.runner.executor import Sampled
from draftline.engine.runner.masks import Constraining
from draftline.engine.runner.timing import Stopwatch
from draftline.engine.runner.transfer import upload
from draftline.kernels.batch import Inputs, KVCache
from draftline.kernels.ops import Accept, Ops
from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.models.model import Model


class PassByOperation:
    """Launches a pass's operations from the host, shaped as the rows are."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        table: SlotTable,
        ops: Ops,
        accept: Accept,
        constraining: Constraining,
    ) -> None:
        """Everything is on one device; ``ops`` is that device's implementation, and ``accept`` verifies drafts."""
        self._model = model
        self._cache = cache
        self._table = table
        self._ops = ops
        self._constraining = constraining
        self._decider = Decider(ops, accept, table, constraining.table)
        self._block_size = cache.block_size
        self._device = table.tokens.device

    def fits(self, rows: tuple[Row, ...]) -> bool:
        """Any rows."""
        return True

    def run(self, rows: tuple[Row, ...], features: SamplingFeatures, watch: Stopwatch | None = None) -> Sampled:
        """See `Pass.run`."""
        inputs = self._ops.gather(
            self._table,
            upload(np.array([row.slot for row in rows], np.int64), self._device),
            tuple(row.count + row.drafts for row in rows),
            tuple(row.start for row in rows),
            tuple(row.logits_count for row in rows),
            self._block_size,
            # Of a row that only decodes, the host may not know how far it has come.
            tuple(row.count == 1 and row.samples > 0 for row in rows),
        )
        logits = self._model.forward(inputs.batch, self._cache)
        self._constraining.write_masks(rows)
        if watch is not None:
            watch.mark()
        return Sampled(logits, *self._sample(rows, inputs, logits, features))

    def _sample(
        self, rows: tuple[Row, ...], inputs: Inputs, logits: Tensor, features: SamplingFeatures
    ) -> tuple[Tensor, Tensor]:
        """Sample the positions after the rows' last known tokens and drafts, and accept."""
        ends = np.fromiter(accumulate((row.samples for row in rows), initial=0), np.int32)
        slots, positions, deciding = inputs.slots, inputs.positions, logits
        if ends[-1] < len(logits):  # log-probabilities of the prompt brought others along
            at = upload(_sampled_places(rows), self._device)
            slots, positions, deciding = slots[at], positions[at], logits[at]
        which = SampleRows(slots, positions, features, masks=None)
        if not ends[-1]:
            return slots, torch.zeros(len(rows), dtype=torch.int32, device=self._device)
        most = max(row.samples for row in rows)
        return self._decider.decide(deciding, which, upload(ends, self._device), most)


def _sampled_places(rows: tuple[Row, ...]) -> np.ndarray:
    """Which of the logits decide a token."""
    ends = accumulate(row.logits_count for row in rows)
    places = [place for row, end in zip(rows, ends, strict=True) for place in range(end - row.samples, end)]
    return np.array(places, np.int64)
