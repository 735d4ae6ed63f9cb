"""Eight-bit linear layers for up to 16 rows of x, bound by reading the weight once: [M, K] times [N, K] transposed.

The arithmetic is that of `scaled_gemm.py`, and so are the bits. The division is that of `gemm_m16.py`: a program loads its
first channels before it waits for the previous kernel, and copies those that follow several tiles ahead. The weight's tile is
the left matrix of the product, so that one instruction multiplies 64 of its rows, and all rows of x fit the right one.

A tile has two spans of channels, of each weight row and of each row of x: then an instruction's 64 rows are 32 weight rows
twice. So there are twice as many programs, and a sum over K takes half as many steps, which is what bounds few rows of many
channels. Each span is multiplied by both spans of x; half of the products are not used.

The two halves of an integer activation are rows of x like any other; their sums are joined at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.scaled import GROUP, ScaledWeight
from draftline.kernels.triton.device import UNLIMITED, DeviceLimits, fitting
from draftline.kernels.triton.linear.eight_bit import join_halves
from draftline.kernels.triton.linear.epilogue import load_and_finish
from draftline.kernels.triton.linear.smaller import smaller_early_product
from draftline.kernels.triton.overlap import launch_options, prefetch, wait_for_previous
from draftline.kernels.triton.tuples import no_tensors

MAX_SCALED_GEMM_M16_ROWS = 16
"""The largest number of rows of x; a half is a row."""

_MANY_ROWS = 8192
"""Weight rows of which a device cannot hold all programs at once."""

_MANY_CHANNELS = 8192
"""Channels whose sums take a program longer than their bytes take the memory, unless more programs share the rows."""


@dataclass(frozen=True, slots=True)
class ScaledGemmM16Config:
    """How one product is divided.

    Attributes:
        block_n: weight rows a program, a power of two; with SwiGLU half of them are gates.
        block_k: channels of a span: one group where groups are summed on their own, else some. Those that are left of K are a
            last tile.
        early: tiles loaded before the wait for the previous kernel; so is the last one.
        num_stages: depth of the pipeline that loads the others.
        ahead: where launches overlap, channels after the early ones to prefetch before that wait.
    """

    block_n: int
    block_k: int
    early: int
    num_stages: int
    ahead: int = 0

    def smaller(self) -> ScaledGemmM16Config | None:
        """The next smaller division with the same results; None if there is none."""
        return smaller_early_product(self, self.early, least_k=GROUP)

    def shared_bytes(self, limits: DeviceLimits, k: int) -> int:
        """The most shared memory of a program, for ``k`` channels."""
        row_bytes, last = 2 * (MAX_SCALED_GEMM_M16_ROWS + self.block_n), _last(k, self.block_k)
        early = min(self.early, k // (2 * self.block_k))
        before = row_bytes * (early * self.block_k + last)
        if 2 * (early * self.block_k + last) >= k:
            return before
        # Of the early tiles, the last one is still read when the loop begins.
        return max(before, row_bytes * self.block_k + limits.loop_bytes(row_bytes * self.block_k, self.num_stages))


@triton.jit
def _weight_row(row: tl.tensor, first: tl.tensor, N: tl.constexpr, BLOCK_N: tl.constexpr) -> tl.tensor:
    """The weight row of each row of a program, whose output columns begin at ``first``: gates come before their partners."""
    return row // BLOCK_N * N + tl.minimum(first + row % BLOCK_N, N - 1)


@triton.jit
def _factor(
    x_scale: tl.tensor,
    token: tl.tensor,
    num_rows: tl.tensor,
    weight_scale: tl.tensor,
    weight_row: tl.tensor,
    group: tl.tensor,
    GROUPS: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
) -> tl.tensor:
    """The scales of a group: of each weight row and token."""
    by_token = tl.load(x_scale + group * num_rows + token, mask=token < num_rows, other=0.0)
    return tl.load(weight_scale + weight_row // SCALE_ROWS * GROUPS + group) * by_token


@triton.jit
def _own_spans(product: tl.tensor, ROWS: tl.constexpr, BLOCK_M: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Of [2 ROWS, 2 BLOCK_M] products of each span with each, those of a span with itself: [ROWS / 8, 8, BLOCK_M], twice.

    A thread has the rows r and r + 8 of what an instruction multiplies, so nothing moves between threads.
    """
    spans = tl.permute(tl.reshape(product, (ROWS // 8, 2, 8, 2, BLOCK_M)), (0, 2, 4, 1, 3))
    with_first, with_second = tl.split(spans)
    first, _other = tl.split(with_first)
    _other, second = tl.split(with_second)
    return first, second


@triton.jit
def _add_product(
    acc: tl.tensor,
    value: tl.tensor,
    tile: tl.tensor,
    group: tl.tensor,
    x_scale: tl.tensor,
    token: tl.tensor,
    num_rows: tl.tensor,
    weight_scale: tl.tensor,
    weight_row: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    GROUPS: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    GROUPED: tl.constexpr,
    INTEGERS: tl.constexpr,
    BOTH: tl.constexpr,
) -> tl.tensor:
    """``acc`` and the products of both spans, one after the other; without BOTH there is nothing in the second.

    Where channels have scales, ``group`` is the first span's. Integers are added in any order, so all products of two tiles are.
    """
    if INTEGERS:
        return tl.dot(tile, tl.trans(value), acc, out_dtype=tl.int32)
    else:
        if GROUPED:
            factor = _factor(x_scale, token, num_rows, weight_scale, weight_row, group, GROUPS, SCALE_ROWS)
            second_factor = factor
            if BOTH:
                second_factor = _factor(
                    x_scale, token, num_rows, weight_scale, weight_row, group + 1, GROUPS, SCALE_ROWS
                )  # fmt: skip
        first, second = _own_spans(tl.dot(tile, tl.trans(value)).to(tl.float32), ROWS, BLOCK_M)
        acc = tl.fma(first, factor, acc) if GROUPED else acc + first
        if BOTH:
            acc = tl.fma(second, second_factor, acc) if GROUPED else acc + second
        return acc


@triton.jit(do_not_specialize=["num_rows"])
def _scaled_gemm_m16_kernel(
    x: tl.tensor,
    x_scale: tl.tensor,
    weight: tl.tensor,
    weight_scale: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    num_rows: int,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    GROUPED: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
    LAST: tl.constexpr,
    AHEAD: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """With SWIGLU the weight is [2 N, K]: gates first. LAST is the width of a span of the last tile, 0 if tiles divide K.

    x has HALVES rows a token, ``num_rows`` are the tokens.
    """
    BLOCK_N: tl.constexpr = ROWS // 2 if SWIGLU else ROWS
    # Sums of products of eight-bit integers, of less than 132,000 channels, do not overflow.
    INTEGERS: tl.constexpr = HALVES == 2 and not GROUPED
    tl.static_assert(INTEGERS or BLOCK_K == GROUP, "groups are summed on their own")
    GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
    STEP: tl.constexpr = 2 * BLOCK_K
    WHOLE: tl.constexpr = K // STEP * STEP
    first = tl.program_id(0) * BLOCK_N
    # Of every 16 rows of a tile, 8 are weight rows in the first span of channels, and 8 the same rows in the second.
    tile_row = tl.arange(0, 2 * ROWS)[:, None]
    row = tile_row // 16 * 8 + tile_row % 8
    row_start = weight + _weight_row(row, first, N, BLOCK_N).to(tl.int64) * K
    row_span = tile_row // 8 % 2
    m = tl.arange(0, 2 * BLOCK_M)[:, None]
    x_start = x + m % BLOCK_M * K
    x_span = m // BLOCK_M
    seen = m % BLOCK_M // HALVES < num_rows
    channel = tl.arange(0, BLOCK_K)[None, :]
    tile_start = row_start + row_span * BLOCK_K + channel
    value_start = x_start + x_span * BLOCK_K + channel
    tiles = no_tensors()
    for early in tl.static_range(EARLY):
        tiles += (tl.load(tile_start + early * STEP),)
    if LAST:
        last_channel = WHOLE + tl.arange(0, LAST)[None, :]
        tile_channel = last_channel + row_span * LAST
        last_tile = tl.load(row_start + tile_channel, mask=tile_channel < K, other=0.0)
    if OVERLAP and AHEAD > 0:
        line = EARLY * STEP + row_span * (AHEAD // 2) + tl.arange(0, AHEAD // 256)[None, :] * 128
        prefetch(row_start + tl.minimum(line, K - 1))
    wait_for_previous(OVERLAP)
    values = no_tensors()
    for early in tl.static_range(EARLY):
        values += (tl.load(value_start + early * STEP, mask=seen, other=0.0),)
    if LAST:
        value_channel = last_channel + x_span * LAST
        last_value = tl.load(x_start + value_channel, mask=seen & (value_channel < K), other=0.0)
    sum_row = tl.arange(0, ROWS // 8)[:, None, None] * 8 + tl.arange(0, 8)[None, :, None]
    sum_row = _weight_row(sum_row, first, N, BLOCK_N)
    token = tl.arange(0, BLOCK_M)[None, None, :] // HALVES
    acc = tl.zeros(
        [2 * ROWS, 2 * BLOCK_M] if INTEGERS else [ROWS // 8, 8, BLOCK_M], tl.int32 if INTEGERS else tl.float32
    )
    for early in tl.static_range(EARLY):
        acc = _add_product(
            acc, values[early], tiles[early], 2 * early, x_scale, token, num_rows, weight_scale, sum_row,
            ROWS, BLOCK_M, GROUPS, SCALE_ROWS, GROUPED, INTEGERS, True,
        )  # fmt: skip
    if EARLY * STEP < WHOLE:
        for k in tl.range(EARLY * STEP, WHOLE, STEP):
            value = tl.load(value_start + k, mask=seen, other=0.0)
            acc = _add_product(
                acc, value, tl.load(tile_start + k), k // GROUP, x_scale, token, num_rows, weight_scale, sum_row,
                ROWS, BLOCK_M, GROUPS, SCALE_ROWS, GROUPED, INTEGERS, True,
            )  # fmt: skip
    if LAST:
        acc = _add_product(
            acc, last_value, last_tile, WHOLE // GROUP, x_scale, token, num_rows, weight_scale, sum_row,
            ROWS, BLOCK_M, GROUPS, SCALE_ROWS, GROUPED, INTEGERS, K - WHOLE > LAST,
        )  # fmt: skip
    if INTEGERS:
        by_first, by_second = _own_spans(acc, ROWS, BLOCK_M)
        sums = tl.reshape(by_first + by_second, (ROWS, BLOCK_M))
    else:
        sums = tl.reshape(acc, (ROWS, BLOCK_M))
    result = join_halves(tl.trans(sums), HALVES)
    tokens = tl.arange(0, BLOCK_M // HALVES)[:, None]
    if not GROUPED:
        weight_row = _weight_row(tl.arange(0, ROWS), first, N, BLOCK_N)
        result *= tl.load(x_scale + tokens, mask=tokens < num_rows, other=0.0)
        result *= tl.load(weight_scale + weight_row // SCALE_ROWS)[None, :]
    up = result
    if SWIGLU:
        result, up = tl.split(tl.permute(tl.reshape(result, (BLOCK_M // HALVES, 2, BLOCK_N)), (0, 2, 1)))
    n = first + tl.arange(0, BLOCK_N)[None, :]
    mask = (tokens < num_rows) & (n < N)
    offset = tokens * N + n
    result = load_and_finish(
        result, up, bias, residual, n, offset, mask, out.dtype.element_ty, N, BIAS, SWIGLU, ADD
    )  # fmt: skip
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=mask)


def scaled_gemm_m16_config(rows: int, k: int, *, in_groups: bool) -> ScaledGemmM16Config:
    """A good division for ``rows`` weight rows of ``k`` channels; `benchmarks/quantization.py` compares others.

    Args:
        rows: weight rows.
        k: channels.
        in_groups: whether groups of channels are summed on their own.
    """
    if rows > _MANY_ROWS:
        return ScaledGemmM16Config(64, GROUP, early=4, num_stages=4 if in_groups else 5, ahead=512)
    if not in_groups:
        if rows > 4096:
            return ScaledGemmM16Config(64, 256, early=2, num_stages=3, ahead=512)
        if k <= 2048:
            return ScaledGemmM16Config(32, 256, early=2, num_stages=4, ahead=512)
        return ScaledGemmM16Config(32, 512, early=1, num_stages=3, ahead=512)
    if k > _MANY_CHANNELS:
        return ScaledGemmM16Config(32, GROUP, early=4, num_stages=8)
    return ScaledGemmM16Config(32 if rows <= 2048 else 64, GROUP, early=4, num_stages=6, ahead=512)


def _last(k: int, block_k: int) -> int:
    """The width of a span of the last tile. The matrix units sum whole groups on their own."""
    left = k % (2 * block_k)
    return max(triton.next_power_of_2(triton.cdiv(left, 2)), GROUP) if left else 0


def scaled_gemm_m16(
    x: Tensor,
    x_scale: Tensor,
    weight: ScaledWeight,
    bias: Tensor | None,
    *,
    dtype: torch.dtype,
    swiglu: bool = False,
    residual: Tensor | None = None,
    overlap: bool = False,
    config: ScaledGemmM16Config | None = None,
    limits: DeviceLimits = UNLIMITED,
) -> Tensor:
    """`scaled_gemm` of up to `MAX_SCALED_GEMM_M16_ROWS` rows; the same arguments, and the same bits."""
    num_rows, halves, k = x.shape
    weight_rows = weight.data.shape[0]
    n = weight_rows // 2 if swiglu else weight_rows
    config = config or fitting(
        scaled_gemm_m16_config(weight_rows, k, in_groups=weight.grouped or halves == 1),
        lambda one: one.shared_bytes(limits, k),
        limits,
    )
    out = torch.empty((num_rows, n), dtype=dtype, device=x.device)
    _scaled_gemm_m16_kernel[(triton.cdiv(n, config.block_n // 2 if swiglu else config.block_n),)](
        x,
        x_scale,
        weight.data,
        weight.scale,
        bias if bias is not None else out,
        residual if residual is not None else out,
        out,
        num_rows,
        N=n,
        K=k,
        GROUP=GROUP,
        SCALE_ROWS=weight.rows,
        GROUPED=weight.grouped,
        HALVES=halves,
        BLOCK_M=MAX_SCALED_GEMM_M16_ROWS,
        ROWS=config.block_n,
        BLOCK_K=config.block_k,
        EARLY=min(config.early, k // (2 * config.block_k)),
        LAST=_last(k, config.block_k),
        AHEAD=config.ahead,
        BIAS=bias is not None,
        SWIGLU=swiglu,
        ADD=residual is not None,
        OVERLAP=overlap,
        num_warps=4,
        num_stages=config.num_stages,
        **launch_options(overlap),
    )
    return out
