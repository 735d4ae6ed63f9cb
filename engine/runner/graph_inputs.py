"""What the host writes for a graph: each row's slot, and the plan of the gather kernel; or each row's slot and drafts.

A graph's rows beyond the step's own are padding: they have no query token, so no kernel writes anything for them.
Arithmetic on the host only; the graphs, and the transfer, are others' business.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from draftline.engine.request.sequence import Row
from draftline.kernels.triton.inputs.gather import FROM_NEWEST


def plan_words(size: int) -> int:
    """How many int64 the inputs of ``size`` rows take."""
    return size + (3 * size + 3) // 2


def fill_plan(inputs: np.ndarray, size: int, rows: tuple[Row, ...]) -> None:
    """Write a step's rows, padded to ``size``.

    Args:
        inputs: [plan_words(size)] int64: ``size`` slots (0 for padding), then as pairs of int32 the plan of
            `gather_planned`. Where a decode starts, the device knows better than the host.
        size: the graph's rows.
        rows: the step's, at most ``size``, that want logits of what they sample only.
    """
    padding = [0] * (size - len(rows))
    inputs[:size] = [row.slot for row in rows] + padding
    queries = list(accumulate([row.count + row.drafts for row in rows], initial=0))
    samples = list(accumulate([row.samples for row in rows], initial=0))
    starts = [FROM_NEWEST if row.count == 1 and row.samples else row.start for row in rows]
    # One list, and one assignment: numpy takes longer to be called than to copy a few rows.
    inputs[size:].view(np.int32)[: 3 * size + 2] = (
        queries + queries[-1:] * len(padding) + samples + samples[-1:] * len(padding) + starts + padding
    )


def draft_words(size: int) -> int:
    """How many int64 the drafter's inputs for ``size`` rows take."""
    return size + (size + 1) // 2


def fill_drafts(inputs: np.ndarray, size: int, rows: tuple[Row, ...]) -> None:
    """Write who wants how many drafts.

    Args:
        inputs: [draft_words(size)] int64: ``size`` slots, then as pairs of int32 the drafts; both 0 for padding.
        size: the graph's rows.
        rows: the step's, at most ``size``.
    """
    padding = [0] * (size - len(rows))
    inputs[:size] = [row.slot for row in rows] + padding
    inputs[size:].view(np.int32)[:size] = [row.drafts for row in rows] + padding
