"""The drafter that is a smaller model with the target's vocabulary.

It has keys and values of its own in the blocks of the target's cache, under the same numbers: whatever the target's
block table says of a sequence holds for the draft model too. Each draft is drawn as the target will draw it, with the
noise of the same seed and position, so that the two agree as often as their distributions let them (Gumbel coupling).

A round of K drafts runs the model K times. The last draft is never run, so if all are accepted, the cache lacks that
one token beside the newest: the first run of every round therefore sees two tokens. A cache that lacks more has to catch
up first; who lacks what is `engine.draft_cache`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftline.kernels.batch import KVCache
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.models.model import Model
from draftline.spec.drafter import DraftChunk, DraftRows


class DraftModel:
    """Drafts with a model. Everything is on the target's device."""

    name = "draft_model"

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        ops: Ops,
        max_draft_tokens: int,
        constraints: ConstraintTable,
        *,
        chunk_tokens: int,
    ) -> None:
        """A drafter that has seen nothing yet.

        Args:
            model: has the target's vocabulary.
            cache: the draft model's, with the blocks of the target's.
            ops: the device's operations.
            max_draft_tokens: the most that is ever drafted at once.
            constraints: what they force is not the model's to guess; it sees it like a guess of its own.
            chunk_tokens: the most tokens that it catches up with in one forward pass.
        """
        self.max_draft_tokens = max_draft_tokens
        self._model = model
        self._cache = cache
        self._ops = ops
        self._constraints = constraints
        self._chunk_tokens = chunk_tokens
        self._block_size = cache.block_size

    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        """See `Drafter.propose`. What only shapes a distribution, such as top-p or penalties, is left to the target."""
        ops = self._ops
        for step in range(rows.most):
            inputs = ops.gather_drafts(table, rows.slots, rows.drafts, step, self._block_size)
            logits = self._model.forward(inputs.batch, self._cache)
            which = SampleRows(inputs.slots, inputs.positions, SamplingFeatures.TEMPERATURE, masks=None)
            ops.write_drafts(ops.sample(logits, which, table), which, table)
            ops.draft_forced(rows.slots, step + 1, table, self._constraints)

    def catch_up(self, chunks: Sequence[DraftChunk], table: SlotTable) -> None:
        """See `Drafter.catch_up`."""
        for batch in _batches(chunks, self._chunk_tokens):
            slots = torch.tensor([chunk.slot for chunk in batch], dtype=torch.int64)
            if table.tokens.device.type == "cuda":
                slots = slots.pin_memory().to(table.tokens.device, non_blocking=True)
            counts = tuple(chunk.count for chunk in batch)
            starts = tuple(chunk.start for chunk in batch)
            inputs = self._ops.gather(table, slots, counts, starts, (0,) * len(batch), self._block_size)
            self._model.forward(inputs.batch, self._cache)


def _batches(chunks: Sequence[DraftChunk], most: int) -> list[list[DraftChunk]]:
    """The chunks in order, divided so that none of the batches has more than ``most`` tokens."""
    batches: list[list[DraftChunk]] = []
    left = 0
    for chunk in chunks:
        start, end = chunk.start, chunk.start + chunk.count
        while start < end:
            if not left:
                batches.append([])
                left = most
            part = min(left, end - start)
            batches[-1].append(DraftChunk(chunk.slot, start, part))
            start += part
            left -= part
    return batches
