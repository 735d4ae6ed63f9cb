"""What the host writes for a graph: a step's rows, as arithmetic on arrays. No tensor, and no object a row."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from draftline.engine.request.sequence import Row
from draftline.kernels.triton.inputs.gather import FROM_NEWEST
from draftline.spec.drafter import DraftChunk


def forward_words(size: int) -> int:
    """How many int64 the inputs of a forward pass of ``size`` rows take.

    An even number: the drafts' inputs behind them have the alignment that they have alone. Another would double the
    kernels that read them.
    """
    words = size + (3 * size + 3) // 2
    return words + words % 2


def fill_forward(inputs: np.ndarray, size: int, rows: tuple[Row, ...]) -> None:
    """Write a step's rows, padded to ``size``.

    Args:
        inputs: [forward_words(size)] int64: ``size`` slots (0 for padding), then as pairs of int32 the plan of
            `gather_planned`. Where a decode starts, the device knows better than the host.
        size: the graph's rows.
        rows: the step's, at most ``size``. They want logits of their sampled positions only.
    """
    _fill_plan(
        inputs,
        size,
        slots=[row.slot for row in rows],
        queries=[row.count + row.drafts for row in rows],
        samples=[row.samples for row in rows],
        starts=[FROM_NEWEST if row.count == 1 and row.samples else row.start for row in rows],
    )


def fill_chunks(inputs: np.ndarray, size: int, chunks: Seq[DraftChunk]) -> None:
    """Write the chunks that a drafter catches up with, as `fill_forward` does rows."""
    _fill_plan(
        inputs,
        size,
        slots=[chunk.slot for chunk in chunks],
        queries=[chunk.count for chunk in chunks],
        samples=[0] * len(chunks),
        starts=[chunk.start for chunk in chunks],
    )


def _fill_plan(
    inputs: np.ndarray, size: int, *, slots: list[int], queries: list[int], samples: list[int], starts: list[int]
) -> None:
    padding = [0] * (size - len(slots))
    inputs[:size] = slots + padding
    query_starts, sample_starts = list(accumulate(queries, initial=0)), list(accumulate(samples, initial=0))
    # One list, and one assignment: calling numpy takes longer than copying a few rows.
    inputs[size:].view(np.int32)[: 3 * size + 2] = (
        query_starts
        + query_starts[-1:] * len(padding)
        + sample_starts
        + sample_starts[-1:] * len(padding)
        + starts
        + padding
    )


def draft_words(size: int) -> int:
    """How many int64 the drafter's inputs for ``size`` rows take."""
    return size + (size + 1) // 2


def fill_drafts(inputs: np.ndarray, size: int, rows: tuple[Row, ...]) -> None:
    """Write how many drafts each row wants.

    Args:
        inputs: [draft_words(size)] int64: ``size`` slots, then as pairs of int32 the drafts; both 0 for padding.
        size: the graph's rows.
        rows: the step's, at most ``size``.
    """
    padding = [0] * (size - len(rows))
    inputs[:size] = [row.slot for row in rows] + padding
    inputs[size:].view(np.int32)[:size] = [row.drafts for row in rows] + padding


def slots_and_plan(inputs: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The slots and the plan in a graph's inputs, where `fill_forward` writes them."""
    return inputs[:rows], inputs[rows:].view(torch.int32)[: 3 * rows + 2]


def slots_and_drafts(inputs: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The slots and how many drafts each wants, where `fill_drafts` writes them."""
    return inputs[:rows], inputs[rows:].view(torch.int32)[:rows]
