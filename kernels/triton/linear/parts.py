"""Which dense products are sums of four parts, and of which channels.

The matrix units add 16 channels after the other, and each addition waits for the one before. A narrow weight is read in less time
than such a chain of all its channels takes. So of these weights the channels are in four parts. Each is a chain of its own,
and their sums are added in float32, from the first to the last. A few rows gain what three quarters of the chain took
(docs/tuning.md#sums-in-parts). With many rows, tiles take one part after the other.

This belongs to the arithmetic: it depends on a weight's shape and dtype, and never on the number of rows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.linear.epilogue import added

PARTS = tl.constexpr(4)
"""As many as a program of few rows has warps: each has a part."""

_MOST_ROWS, _MOST_ELEMENTS = 2048, 8 << 20
"""Weight rows and elements up to which reading a weight takes no longer than the chain."""

_WHOLE = 128
"""A part has a multiple of so many channels, so that tiles of 64 and 128 channels are in one part each."""


def part_channels(weight: Tensor) -> int:
    """The channels of a part of a product with a weight [N, K], of which the last parts may have fewer or none; 0 if it is one sum."""
    rows, k = weight.shape
    if weight.element_size() != 2 or rows > _MOST_ROWS or rows * k > _MOST_ELEMENTS or k <= _WHOLE:
        return 0
    return -(-k // (int(PARTS) * _WHOLE)) * _WHOLE


@triton.jit
def sum_of_parts(parts: tl.tensor) -> tl.tensor:
    """[PARTS, N, M] -> [N, M], added from the first to the last."""
    by_two = tl.reshape(tl.permute(parts, (1, 2, 0)), (parts.shape[1], parts.shape[2], 2, 2))
    even, odd = tl.split(by_two)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return added(fourth, added(third, added(second, first)))
