"""Sums whose bits depend on their terms alone: not on tile shapes, warps, or which kernel computes them.

`tl.sum` adds in an order that follows the compiler's layout, which differs from kernel to kernel. A sum of two terms has
one order. So these sums add the second half of a row to the first, and again, down to one element: a binary tree. A
thread mostly holds both terms itself.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(knobs.runtime.interpret)
"""Whether Triton's interpreter runs the kernels: it has no inline assembly."""

_MAX_LEVELS = tl.constexpr(17)


@triton.jit
def tree_sum(value: tl.tensor) -> tl.tensor:
    """[M, N] -> [M], N a power of two up to 2^17."""
    for _level in tl.static_range(_MAX_LEVELS):
        if value.shape[1] > 1:
            value = tl.sum(tl.reshape(value, (value.shape[0], 2, value.shape[1] // 2)), axis=1)
    return tl.reshape(value, (value.shape[0],))


@triton.jit
def square(value: tl.tensor) -> tl.tensor:
    """The square of a float32, rounded by itself: the compiler must not fuse it with the addition that follows."""
    if INTERPRETED:
        return value * value
    return tl.inline_asm_elementwise("mul.rn.f32 $0, $1, $1;", "=f,f", [value], dtype=tl.float32, is_pure=True, pack=1)
