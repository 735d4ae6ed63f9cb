"""The input of a product of few rows, normalized and quantized by each program of the product for itself.

A kernel for that alone would take longer than its arithmetic, and memory would be idle meanwhile. The weight's first tiles
are already on their way when a program reads its rows. The rules are those of `norms.py` and `quantize.py`, and so are the
bits: the sum of squares is the same tree, and the largest magnitude has no order.

Rows are read as [TOKENS, A, COLUMNS] parts. Each of four rows is a warp's own, and a thread holds the terms of the first
additions itself. No part needs more registers than a thread has.

Not here: more rows, for which all programs together would read too much.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from draftline.kernels.triton.linear.eight_bit import round_to, round_to_halves, scaled_down
from draftline.kernels.triton.pointwise.norms import inverse_rms, normalized
from draftline.kernels.triton.sums import square, tree_sum
from draftline.kernels.triton.tuples import no_tensors

_PART = 8192
"""Elements of a part: 64 a thread of 4 warps."""

_MAX_PARTS = 16
"""The most parts of a row. Their code is not a loop."""

_MAX_PARTS_LOG2 = tl.constexpr(4)
_MAX_LEVELS = tl.constexpr(8)
_COLUMNS = tl.constexpr(256)
"""Neighbouring columns of a part: eight for each thread of a warp."""


@dataclass(frozen=True, slots=True)
class RowInput:
    """How a program reads its rows.

    Attributes:
        tokens: rows that it reads, those beyond the last as zeros.
        width: channels of a row, filled up with zeros to a power of two.
        parts: parts of the rows, a power of two.
    """

    tokens: int
    width: int
    parts: int

    @staticmethod
    def of(rows: int, k: int, choices: tuple[int, ...]) -> RowInput | None:
        """For ``rows`` rows of ``k`` channels; None where a kernel of its own should prepare them.

        Args:
            rows: the number of rows.
            k: the number of channels.
            choices: the numbers of rows for which a product has a kernel, ascending.
        """
        tokens = next((count for count in choices if rows <= count), None)
        if tokens is None:
            return None
        width = triton.next_power_of_2(k)
        parts = min(max(tokens * width // _PART, 1), max(width // _COLUMNS.value, 1))
        return RowInput(tokens, width, parts) if parts <= _MAX_PARTS else None


@triton.jit
def _read(
    start: tl.tensor,
    num_rows: tl.tensor,
    part: tl.constexpr,
    stride: tl.constexpr,
    K: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    CACHE: tl.constexpr,
) -> tl.tensor:
    """A part of the rows, which begin ``stride`` elements apart, [TOKENS, A, COLUMNS] float32.

    Element [t, a, c] is the channel ``(a * PARTS + part) * COLUMNS + c`` of row t.
    """
    COLUMNS: tl.constexpr = min(_COLUMNS, WIDTH // PARTS)
    above = tl.arange(0, WIDTH // PARTS // COLUMNS)[None, :, None]
    channel = (above * PARTS + part) * COLUMNS + tl.arange(0, COLUMNS)[None, None, :]
    token = tl.arange(0, TOKENS)[:, None, None]
    mask = (token < num_rows) & (channel < K)
    return tl.load(start + token * stride + channel, mask=mask, other=0.0, cache_modifier=CACHE).to(tl.float32)


@triton.jit
def _apart(by_row: tl.tensor) -> tl.tensor:
    """[R], the same values. A tile that is multiplied by them would else be laid out as the parts that they come from."""
    return tl.gather(by_row, tl.arange(0, by_row.shape[0]), axis=0)


@triton.jit
def inverse_norms(
    x: tl.tensor,
    num_rows: tl.tensor,
    eps: tl.tensor,
    K: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
) -> tl.tensor:
    """RMSNorm's factors of the first ``num_rows`` rows of x, [TOKENS] float32."""
    sums = no_tensors()
    for part in tl.static_range(PARTS):
        squares = square(_read(x, num_rows, part, K, K, TOKENS, WIDTH, PARTS, ""))
        # The tree's first levels: halves of axis 1.
        for _level in tl.static_range(_MAX_LEVELS):
            if squares.shape[1] > 1:
                squares = tl.sum(tl.reshape(squares, (TOKENS, 2, squares.shape[1] // 2, squares.shape[2])), axis=1)
        sums += (tl.reshape(squares, (TOKENS, squares.shape[2])),)
    # Its next levels: halves of the parts.
    for level in tl.static_range(_MAX_PARTS_LOG2):
        if (PARTS >> level) > 1:
            halved = no_tensors()
            for part in tl.static_range(PARTS >> (level + 1)):
                halved += (sums[part] + sums[part + (PARTS >> (level + 1))],)
            sums = halved
    return _apart(inverse_rms(tree_sum(sums[0]), eps, K))


@triton.jit
def largest_magnitudes(
    x: tl.tensor,
    norm: tl.tensor,
    inverse: tl.tensor,
    num_rows: tl.tensor,
    K: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    NORM: tl.constexpr,
) -> tl.tensor:
    """The largest magnitudes of the rows of x, [TOKENS] float32; with NORM, of their norm by the factors ``inverse``."""
    COLUMNS: tl.constexpr = min(_COLUMNS, WIDTH // PARTS)
    largest = tl.zeros([TOKENS, WIDTH // PARTS // COLUMNS, COLUMNS], tl.float32)
    for part in tl.static_range(PARTS):
        # Cached as by default. But if the load were the one of `inverse_norms`, registers would hold all of x between the two.
        value = _read(x, num_rows, part, K, K, TOKENS, WIDTH, PARTS, ".ca")
        if NORM:
            value = normalized(
                value, inverse[:, None, None], _read(norm, num_rows, part, 0, K, TOKENS, WIDTH, PARTS, "")
            )
        largest = tl.maximum(largest, tl.abs(value))
    return _apart(tl.max(tl.max(largest, axis=2), axis=1))


@triton.jit
def repeated(rows: tl.tensor, M: tl.constexpr) -> tl.tensor:
    """[R, K] -> [M, K], the rows again and again: a product has no fewer rows than M. Of a copy nothing is stored."""
    # Not rows[None]: that would change the layout.
    one = tl.reshape(rows, (1, rows.shape[0], rows.shape[1]))
    return tl.reshape(tl.broadcast_to(one, (M // rows.shape[0], rows.shape[0], rows.shape[1])), (M, rows.shape[1]))


@triton.jit
def each_repeated(by_row: tl.tensor, TIMES: tl.constexpr, M: tl.constexpr) -> tl.tensor:
    """[R] -> [M], each element TIMES times, and all of that again and again."""
    return tl.gather(by_row, tl.arange(0, M) // TIMES % by_row.shape[0], axis=0)


@triton.jit
def quantized(
    value: tl.tensor, largest: tl.tensor, dtype: tl.constexpr, LARGEST: tl.constexpr, HALVES: tl.constexpr
) -> tl.tensor:
    """[T, K] float32 with largest magnitudes [T] -> [HALVES * T, K] of an eight-bit type."""
    value = scaled_down(value, largest[:, None], LARGEST)
    if HALVES == 2:
        high, low = round_to_halves(value)
        pairs = tl.permute(tl.join(high, low), (0, 2, 1))
        result = tl.reshape(pairs, (2 * value.shape[0], value.shape[1]))
    else:
        result = round_to(value, dtype)
    return result
