"""Eight-bit numbers in kernels: rounding to them, and integers of sixteen bits as two of them."""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.sums import INTERPRETED

# Adding and subtracting 1.5 * 2^23 rounds a small float32 to the nearest integer, ties to even.
_TO_INTEGER = tl.constexpr(12582912.0)

# The same for multiples of 2^-9, the distance of e4m3's smallest numbers.
_TO_SMALLEST = tl.constexpr(24576.0)


CHANNELS_OF_ONE_SUM = 512
"""How many FP8 products the matrix units sum on their own, where a row has one scale. They keep some 14 bits of a sum: much
longer sums would lose what FP8 itself does not, and shorter ones take longer (docs/benchmarks.md). Part of the arithmetic."""


@triton.jit
def _to_integer(value: tl.tensor) -> tl.tensor:
    """A float32 of less than 2^22 as the nearest integer, ties to even."""
    return (value + _TO_INTEGER) - _TO_INTEGER


@triton.jit
def round_to(value: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Float32 as int8 or float8e4nv: within +-127 or +-448, to the nearest, ties to even.

    Triton's interpreter, which runs the tests, would lose carries: there FP8 is rounded first, and cast exactly.
    """
    if dtype == tl.int8:
        rounded = _to_integer(value)
    elif not INTERPRETED:
        rounded = value
    else:
        bits = value.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
        small = (value + _TO_SMALLEST) - _TO_SMALLEST
        # Below the smallest normal number, 2^-6.
        rounded = tl.where(tl.abs(value) < 0.015625, small, bits.to(tl.float32, bitcast=True))
    return rounded.to(dtype)


@triton.jit
def round_to_halves(value: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Float32 within +-32639 as int8 ``high`` and ``low``: ``256 * high + low`` is the nearest integer, ties to even."""
    whole = _to_integer(value).to(tl.int32)
    high = (whole + 128) >> 8
    return high.to(tl.int8), (whole - high * 256).to(tl.int8)


@triton.jit
def join_halves(sums: tl.tensor, HALVES: tl.constexpr) -> tl.tensor:
    """[HALVES * M, N] sums of products, of each token's high half, then its low one -> [M, N] float32."""
    sums = sums.to(tl.float32)
    if HALVES == 2:
        pairs = tl.reshape(sums, (sums.shape[0] // 2, 2, sums.shape[1]))
        factor = tl.where(tl.arange(0, 2) == 0, 256.0, 1.0)
        joined = tl.sum(pairs * factor[None, :, None], axis=1)
    else:
        joined = sums
    return joined
