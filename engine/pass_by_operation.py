"""``PassByOperation``: any rows at all, one operation after the other."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from draftline.engine.runner import Sampled
from draftline.engine.sequence import Row
from draftline.engine.transfer import upload
from draftline.kernels.batch import KVCache
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.models.model import Model


class PassByOperation:
    """Launches a pass's operations from the host, shaped as the rows are."""

    def __init__(self, model: Model, cache: KVCache, table: SlotTable, ops: Ops) -> None:
        """Everything is on one device; ``ops`` is that device's implementation."""
        self._model = model
        self._cache = cache
        self._table = table
        self._ops = ops
        self._block_size = cache.keys[0].shape[1]
        self._device = table.tokens.device

    def fits(self, rows: tuple[Row, ...]) -> bool:
        """Any rows."""
        return True

    def run(self, rows: tuple[Row, ...], features: SamplingFeatures) -> Sampled:
        """See `Pass.run`."""
        inputs = self._ops.gather(
            self._table,
            upload(np.array([row.slot for row in rows], np.int64), self._device),
            tuple(row.count + row.drafts for row in rows),
            tuple(row.start for row in rows),
            tuple(row.logits_count for row in rows),
            self._block_size,
        )
        logits = self._model.forward(inputs.batch, self._cache)
        return self._sample(rows, logits, features)

    def _sample(self, rows: tuple[Row, ...], logits: Tensor, features: SamplingFeatures) -> Sampled:
        """Sample the positions after the rows' last known tokens and drafts, and commit what was sampled."""
        sampling = tuple(row for row in rows if row.samples)
        slots = [row.slot for row in sampling for _ in range(row.samples)]
        positions = [row.known + i for row in sampling for i in range(row.samples)]
        where = upload(np.array((slots, positions), np.int64), self._device)
        which = SampleRows(where[0], where[1], features, mask=None)
        if not sampling:
            return Sampled(logits, which.slots, None)
        drafts: Tensor | None = None
        if any(row.drafts for row in sampling):
            drafts = self._table.tokens[which.slots, which.positions].long()
        tokens = self._ops.sample(self._sampled_rows(rows, logits), which, self._table)
        self._ops.commit(tokens, which, self._table)
        return Sampled(logits, tokens, drafts)

    def _sampled_rows(self, rows: tuple[Row, ...], logits: Tensor) -> Tensor:
        """The logits that decide a token: all, unless log-probabilities of the prompt brought others along."""
        if all(row.logits_count == row.samples for row in rows):
            return logits
        index: list[int] = []
        end = 0
        for row in rows:
            end += row.logits_count
            index.extend(range(end - row.samples, end))
        return logits[upload(np.array(index, np.int64), self._device)]
