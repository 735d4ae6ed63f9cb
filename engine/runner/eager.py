"""``EagerExecutor``: steps of any rows, launched operation by operation, in tensors of just the rows' sizes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate, product

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Row, Sequence
from draftline.engine.runner.executor import Executor, ExecutorParts, ForwardResult, SampleResult
from draftline.engine.runner.transfer import to_host, upload
from draftline.kernels.batch import Batch
from draftline.kernels.slots import SampleRows, SamplingFeatures
from draftline.spec.drafter import DraftChunk, DraftRows

_SHORT_CHUNKS = (2, 5, 7, 9, 16, 32, 64)
"""The last is for the head's kernel of so many logits, where there is one row only."""
_ROWS_OF_CHUNKS = (1, 8, 20)
_OTHER_CHUNKS = ((1, 200), (1, 300), (1, 600), (1, 1400), (18, 9), (40, 2), (40, 5), (40, 16))
"""Rows and tokens: for the head's kernel of hundreds of logits, for products of hundreds of rows whose launches overlap, and for attention
whose programs share no history, where launches overlap or a multiprocessor runs several programs."""
_ROWS_WITH_LOGPROBS = 20
"""Enough for the head's kernel of most logits. Those of all rows would take more memory than a small card has."""
_LONG_CHUNKS = (64, 512, 4096)
"""Whose launches overlap, and whose do not, with few tiles and with many."""
_BESIDE_LONG = (1, 2, 17)
"""Tokens of a decode, and of short chunks with the least tile and the largest."""
_AMONG_DECODES = (17, 32)
"""Tokens of a short chunk whose tile is the largest: the states of as many decodes' tiles fit, or do not."""
_HISTORY = 1024
"""Tokens of a history that several programs share. They share neither a tile nor much longer ones, whose states would not fit."""


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
        slots = upload(np.array([row.slot for row in rows], np.int64), self._device)
        drafts = upload(np.array([row.drafts for row in rows], np.int32), self._device)
        self._parts.drafter.propose(DraftRows(slots, drafts, max(row.drafts for row in rows)), self._parts.table)

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
        starts = np.fromiter(accumulate((row.samples for row in rows), initial=0), np.int32)
        if not starts[-1]:  # chunks of prompts only: no token is decided
            nothing = torch.empty(0, dtype=torch.int64)
            return SampleResult(nothing.to(self._device), nothing, torch.zeros(len(rows), dtype=torch.int32))
        # Log-probabilities of a prompt need logits that decide no token: leave those out.
        if starts[-1] < len(logits):
            deciding = _deciding_logits(rows, self._device)
            logits, slots, positions = logits[deciding], slots[deciding], positions[deciding]
        sample_rows = SampleRows(slots, positions, features, masks=None)
        max_samples = max(row.samples for row in rows)
        tokens, accepted = self._parts.sample_and_accept(logits, sample_rows, upload(starts, self._device), max_samples)
        return SampleResult(tokens, to_host(tokens), to_host(accepted))


def launch_short_chunks(parts: ExecutorParts) -> None:
    """Launch forward passes of short chunks of prompts with log-probabilities, alone and beside longer ones.

    No graph has them, and attention has kernels of their own for them.
    """
    executor, (max_rows, max_len) = EagerExecutor(parts), parts.table.tokens.shape
    for rows in (*[count for count in _ROWS_OF_CHUNKS if count < max_rows], max_rows):
        for count in _SHORT_CHUNKS:
            for history in (0, _HISTORY, max_len):
                executor.forward(_chunks(rows, count, history, max_len))
    for rows, count in _OTHER_CHUNKS:
        # Where no row has room for them, several have as many.
        several = -(-count // max_len)
        executor.forward(_chunks(min(rows * several, max_rows), -(-count // several), _HISTORY, max_len))
    for rows, count, history, longer in product(
        {1, max_rows - 1} - {0}, _BESIDE_LONG, (_HISTORY, max_len), _LONG_CHUNKS
    ):
        long = min(longer, max_len)
        slots = range(rows, min(rows + -(-longer // long), max_rows))
        executor.forward((*_chunks(rows, count, history, max_len), *(_prompt(slot, long) for slot in slots)))
    # A short chunk among many decodes: they have its tile, share histories or do not, and launches may still overlap.
    long = min(_LONG_CHUNKS[0], max_len)
    for rows, short in product({min(_OTHER_CHUNKS[-1][0], max_rows - 2), max_rows - 2}, _AMONG_DECODES):
        if rows > 0 and short <= max_len:
            chunk = _chunk(rows, short, short, SamplingParams(prompt_logprobs=0))
            executor.forward((*_chunks(rows, 1, _HISTORY, max_len), chunk, _prompt(rows + 1, long)))


def _chunks(rows: int, count: int, history: int, max_len: int) -> tuple[Row, ...]:
    """Rows that end prompts with ``count`` tokens."""
    known = min(history + count, max_len)
    samplings = [SamplingParams(prompt_logprobs=0 if slot < _ROWS_WITH_LOGPROBS else None) for slot in range(rows)]
    return tuple([_chunk(slot, known, min(count, known), sampling) for slot, sampling in enumerate(samplings)])


def _prompt(slot: int, count: int) -> Row:
    """A row that computes a prompt of ``count`` tokens."""
    return _chunk(slot, count, count, SamplingParams())


def _chunk(slot: int, known: int, count: int, sampling: SamplingParams) -> Row:
    """A row that ends a prompt of ``known`` tokens."""
    sequence = Sequence("warm-up", slot, [], known, sampling, seed=0, max_len=known + 1, order=0.0)
    return Row(sequence, slot, known - count, count, known, 0, 1)


def _deciding_logits(rows: tuple[Row, ...], device: torch.device) -> Tensor:
    """[S] int64: the indices of the logits that decide a token, the last ``samples`` of each row's."""
    ends = accumulate(row.logits_count for row in rows)
    indices = [index for row, end in zip(rows, ends, strict=True) for index in range(end - row.samples, end)]
    return upload(np.array(indices, np.int64), device)
