"""``EagerExecutor``: steps of any rows, launched operation by operation, in tensors of just the rows' sizes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from draftline.engine.request.sequence import Row
from draftline.engine.runner.executor import Executor, ExecutorParts, ForwardResult, SampleResult
from draftline.engine.runner.timing import DRAFTS, END, FORWARD, SAMPLING
from draftline.engine.runner.transfer import to_host, upload
from draftline.kernels.batch import Batch
from draftline.kernels.slots import SampleRows, SamplingFeatures
from draftline.spec.drafter import DraftChunk, DraftRows


class EagerExecutor(Executor):
    """The executor of a CPU, and on a GPU that of steps without a graph: large prompts, prompt log-probabilities."""

    def __init__(self, parts: ExecutorParts) -> None:
        """Everything is on one device."""
        self._parts = parts
        self._device = parts.table.tokens.device

    @override
    def catch_up(self, chunks: Seq[DraftChunk]) -> None:
        parts, counts = self._parts, tuple([chunk.count for chunk in chunks])
        slots = upload(np.array([chunk.slot for chunk in chunks], np.int64), self._device)

        def gather(shift: int) -> Batch:
            starts = tuple([chunk.start + shift for chunk in chunks])
            return parts.ops.gather(parts.table, slots, counts, starts, (0,) * len(chunks), parts.block_size).batch

        parts.drafter.catch_up(gather)

    @override
    def draft(self, rows: tuple[Row, ...]) -> None:
        self._parts.clock.note(DRAFTS)
        slots = upload(np.array([row.slot for row in rows], np.int64), self._device)
        drafts = upload(np.array([row.drafts for row in rows], np.int32), self._device)
        self._parts.drafter.propose(DraftRows(slots, drafts, max(row.drafts for row in rows)), self._parts.table)
        self._parts.clock.note(FORWARD)

    @override
    def forward(self, rows: tuple[Row, ...]) -> ForwardResult:
        inputs = self._parts.ops.gather(
            self._parts.table,
            upload(np.array([row.slot for row in rows], np.int64), self._device),
            tuple(row.count + row.drafts for row in rows),
            tuple(row.start for row in rows),
            tuple(row.logits_count for row in rows),
            self._parts.block_size,
            # Of a row that only decodes, the host may not know how far it has come.
            tuple(row.count == 1 and row.samples > 0 for row in rows),
        )
        logits = self._parts.forward(inputs.batch)
        return ForwardResult(logits, inputs.slots, inputs.positions)

    @override
    def sample(self, rows: tuple[Row, ...], result: ForwardResult, features: SamplingFeatures) -> SampleResult:
        logits, slots, positions = result.logits, result.slots, result.positions
        clock, has_drafts = self._parts.clock, any(row.drafts for row in rows)
        if has_drafts:
            clock.note(SAMPLING)
        starts = np.fromiter(accumulate((row.samples for row in rows), initial=0), np.int32)
        if not starts[-1]:  # chunks of prompts only: no token is decided
            nothing = torch.empty(0, dtype=torch.int64)
            return SampleResult(nothing.to(self._device), nothing, torch.zeros(len(rows), dtype=torch.int32), None)
        # Log-probabilities of a prompt need logits that decide no token: leave those out.
        if starts[-1] < len(logits):
            deciding = _deciding_logits(rows, self._device)
            logits, slots, positions = logits[deciding], slots[deciding], positions[deciding]
        sample_rows = SampleRows(slots, positions, features, masks=None)
        max_samples = max(row.samples for row in rows)
        tokens, accepted = self._parts.sample_and_accept(logits, sample_rows, upload(starts, self._device), max_samples)
        if has_drafts:
            clock.note(END)
        return SampleResult(tokens, to_host(tokens), to_host(accepted), clock.read() if has_drafts else None)


def _deciding_logits(rows: tuple[Row, ...], device: torch.device) -> Tensor:
    """[S] int64: the indices of the logits that decide a token, the last ``samples`` of each row's."""
    ends = accumulate(row.logits_count for row in rows)
    indices = [index for row, end in zip(rows, ends, strict=True) for index in range(end - row.samples, end)]
    return upload(np.array(indices, np.int64), device)
