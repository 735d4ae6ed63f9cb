"""Rounding to eight-bit types, for kernels that quantize."""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(knobs.runtime.interpret)

# Adding and taking away 1.5 * 2^23 rounds a small float32 to the nearest integer, ties to even.
_TO_INTEGER = tl.constexpr(12582912.0)

# The same for multiples of 2^-9, the distance of e4m3's smallest numbers.
_TO_SMALLEST = tl.constexpr(24576.0)


@triton.jit
def round_to(value: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Float32 as int8 or float8e4nv: within +-127 or +-448, to the nearest, ties to even.

    Triton's interpreter, where kernels are tested, would lose carries: there FP8 is rounded first, and cast exactly.
    """
    if dtype == tl.int8:
        rounded = (value + _TO_INTEGER) - _TO_INTEGER
    elif not INTERPRETED:
        rounded = value
    else:
        bits = value.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
        small = (value + _TO_SMALLEST) - _TO_SMALLEST
        # Below the smallest normal number, 2^-6.
        rounded = tl.where(tl.abs(value) < 0.015625, small, bits.to(tl.float32, bitcast=True))
    return rounded.to(dtype)
