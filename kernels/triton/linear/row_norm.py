"""RMSNorm of few rows in the product that reads them: each program finds the rows' factors for itself.

A launch for the norm alone would take longer than its arithmetic. The weight is on its way meanwhile. The rules are those of
`norms.py`, and so are the bits: the sum of squares is the same tree.

A row is read in pieces of neighbouring channels, one above the other. So a thread itself has both terms of the tree's first levels,
and the threads that share a row are in one warp: fewer threads a row ask each other for fewer terms.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.pointwise.norms import inverse_rms
from draftline.kernels.triton.sums import square, tree_sum

MOST_ROWS, MOST_ROWS_IN_PARTS, MOST_CHANNELS = 8, 64, 1024
"""Beyond these, all programs together would read too much, or hold too much in registers. A narrow weight, whose sums are in parts, has
few programs."""

_MORE_ROWS = 16
"""The rows of a program where there are more than MOST_ROWS: several programs read a weight's tile."""

WARPS = 4
"""Warps of a program."""

_AT_ONCE = tl.constexpr(8 * 32 * WARPS)
"""Channels of all rows that a program's threads load at once, eight each."""


def rows_read(rows: int) -> tuple[int, int]:
    """The rows of a program's tile of x, and those whose factors it finds, for so many rows to normalize.

    There are few forms, since each is a kernel to compile. With fewer rows than warps, warps would share one.
    """
    if rows == 1:
        return 1, WARPS
    most = MOST_ROWS if rows <= MOST_ROWS else _MORE_ROWS
    return most, most


@triton.jit
def row_factors(
    x: tl.tensor,
    num_rows: tl.tensor,
    stride: tl.tensor,
    eps: tl.tensor,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """RMSNorm's factors of rows of x, [ROWS] float32.

    Args:
        x: rows of K channels.
        num_rows: how many of them exist.
        stride: elements from one to the next; 0 for the same row ROWS times, so that each warp has it.
        eps: RMSNorm's epsilon.
        K: channels.
        WIDTH: the power of two that is not less.
        ROWS: rows that are read.
    """
    COLUMNS: tl.constexpr = min(_AT_ONCE // ROWS, WIDTH)
    row = tl.arange(0, ROWS)[:, None, None]
    channel = tl.arange(0, WIDTH // COLUMNS)[None, :, None] * COLUMNS + tl.arange(0, COLUMNS)[None, None, :]
    value = tl.load(x + row * stride + channel, mask=(row < num_rows) & (channel < K), other=0.0)
    squares = square(value.to(tl.float32))
    return inverse_rms(tree_sum(tl.reshape(squares, (ROWS, WIDTH))), eps, K)


@triton.jit
def repeated(rows: tl.tensor, M: tl.constexpr) -> tl.tensor:
    """[R, K] -> [M, K], the rows again and again: a product has no fewer rows than M. Nothing of a copy is stored."""
    if rows.shape[0] == M:
        return rows
    else:
        # Not rows[None]: that would change the layout.
        one = tl.reshape(rows, (1, rows.shape[0], rows.shape[1]))
        return tl.reshape(tl.broadcast_to(one, (M // rows.shape[0], rows.shape[0], rows.shape[1])), (M, rows.shape[1]))
