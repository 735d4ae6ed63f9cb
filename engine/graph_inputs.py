"""What the host writes for a decode graph: each row's slot and drafts, and the plan of the gather kernel.

A bucket's rows beyond the step's own are padding: they have no query token, so no kernel writes anything for them.
Arithmetic on the host only; the graphs, and the transfer, are `pass_graphs`' business.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from draftline.engine.sequence import Row


def is_decode(rows: tuple[Row, ...]) -> bool:
    """Whether every row computes its last known token, and no other but drafts."""
    return all(row.count == 1 and row.samples for row in rows)


def input_words(size: int) -> int:
    """How many int64 the inputs of ``size`` rows take."""
    return size + (4 * size + 3) // 2


def fill_inputs(inputs: np.ndarray, size: int, rows: tuple[Row, ...]) -> None:
    """Write the inputs of decode rows, padded to ``size`` rows.

    Args:
        inputs: [input_words(size)] int64: ``size`` slots (0 for padding), then as pairs of int32 the plan of
            `gather_planned`, and each row's drafts. Where rows start, the device knows better than the host.
        size: the bucket's rows.
        rows: the step's, which `is_decode`; at most ``size``.
    """
    padding = [0] * (size - len(rows))
    inputs[:size] = [row.slot for row in rows] + padding
    begins = list(accumulate([row.samples for row in rows], initial=0))
    begins += begins[-1:] * len(padding)
    # One list, and one assignment: numpy takes longer to be called than to copy a few rows.
    starts, drafts = [~row.start for row in rows] + padding, [row.drafts for row in rows] + padding
    inputs[size:].view(np.int32)[: 4 * size + 2] = begins + begins + starts + drafts
