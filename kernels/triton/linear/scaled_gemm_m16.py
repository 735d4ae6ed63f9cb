"""Eight-bit linear layers for up to 16 rows of x, bound by reading the weight once: [M, K] times [N, K] transposed.

The arithmetic is that of `scaled_gemm.py`, and so are the bits. The division is that of `gemm_m16.py`: a program loads its
first channels before it waits for the previous kernel, and copies those that follow several tiles ahead. The weight's tile is
the left matrix of the product, so that one instruction multiplies 64 of its rows, and all rows of x fit the right one.

The two halves of an integer activation are rows of x like any other; their sums are joined at the end.

Up to 4 tokens are quantized in the launch, after their norm if there is one, see `row_input.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.scaled import ACTIVATIONS, GROUP, LARGEST, ScaledWeight
from draftline.kernels.triton.device import UNLIMITED, DeviceLimits, fitting
from draftline.kernels.triton.linear.eight_bit import EXACT_SUMS, join_halves, scale_of
from draftline.kernels.triton.linear.epilogue import load_and_finish
from draftline.kernels.triton.linear.quantize import halves_of
from draftline.kernels.triton.linear.row_input import (
    RowInput,
    each_repeated,
    inverse_norms,
    largest_magnitudes,
    quantized,
    repeated,
)
from draftline.kernels.triton.linear.smaller import smaller_early_product
from draftline.kernels.triton.overlap import launch_options, prefetch, wait_for_previous
from draftline.kernels.triton.pointwise.norms import normalized
from draftline.kernels.triton.tuples import no_tensors

MAX_SCALED_GEMM_M16_ROWS = 16
"""The largest number of rows of x; a half is a row."""

_QUANTIZED_ROWS = (1, 4)
_NORM_ROWS = (4,)
"""Up to so many rows of x are quantized in the launch, without and with a norm, each number by a kernel of its own."""

_MANY_ROWS = 16384
"""Weight rows of which a device cannot hold all programs at once."""

_FETCHED = 2**23
"""Bytes of a weight to prefetch."""


@dataclass(frozen=True, slots=True)
class ScaledGemmM16Config:
    """How one product is divided.

    Attributes:
        block_n: weight rows a program, a power of two; with SwiGLU half of them are gates.
        block_k: channels a tile: a group where channels have scales, else some groups. Those that are left of K are a last tile.
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
        row_bytes, last = MAX_SCALED_GEMM_M16_ROWS + self.block_n, _last(k, self.block_k)
        early = min(self.early, k // self.block_k)
        before = row_bytes * (early * self.block_k + last)
        if early * self.block_k + last >= k:
            return before
        # Of the early tiles, the last one is still read when the loop begins.
        loop = limits.loop_bytes(row_bytes * self.block_k, self.num_stages)
        quantized = MAX_SCALED_GEMM_M16_ROWS * self.block_k
        return max(before, row_bytes * self.block_k + loop + quantized)


@triton.jit
def _add_product(
    acc: tl.tensor, value: tl.tensor, tile: tl.tensor, factor: tl.tensor, GROUPED: tl.constexpr
) -> tl.tensor:
    """``acc`` and the product of weight rows [R, K] and rows of x [M, K], scaled by their group's scales if they have some."""
    if GROUPED:
        return tl.fma(tl.dot(tile, tl.trans(value)).to(tl.float32), factor, acc)
    else:
        return tl.dot(tile, tl.trans(value), acc, max_num_imprecise_acc=EXACT_SUMS, out_dtype=acc.dtype)


@triton.jit
def _right_of(
    value: tl.tensor,
    inverse: tl.tensor,
    norm: tl.tensor,
    largest: tl.tensor,
    dtype: tl.constexpr,
    LARGEST: tl.constexpr,
    GROUPED: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    NORM: tl.constexpr,
    QUANTIZE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The factor of a product from rows of x, [BLOCK_M, K], and the largest magnitudes of its tokens.

    With QUANTIZE x has floats, [T, K]; where channels have scales, the magnitudes are those of this group.
    """
    if QUANTIZE:
        value = value.to(tl.float32)
        if NORM:
            value = normalized(value, inverse[:, None], norm.to(tl.float32))
        if GROUPED:
            largest = tl.max(tl.abs(value), axis=1)
        return repeated(quantized(value, largest, dtype, LARGEST, HALVES), BLOCK_M), largest
    else:
        return value, largest


@triton.jit
def _factor(
    largest: tl.tensor,
    x_scale: tl.tensor,
    token: tl.tensor,
    num_rows: tl.tensor,
    weight_scale: tl.tensor,
    weight_row: tl.tensor,
    group: tl.tensor,
    LARGEST: tl.constexpr,
    GROUPS: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    GROUPED: tl.constexpr,
    HALVES: tl.constexpr,
    QUANTIZE: tl.constexpr,
) -> tl.tensor:
    """The scales of a group: of each weight row and token, [R, M]. Where channels have none, 1."""
    if GROUPED:
        if QUANTIZE:
            by_token = each_repeated(scale_of(largest, LARGEST), HALVES, token.shape[0])
        else:
            by_token = tl.load(x_scale + group * num_rows + token, mask=token < num_rows, other=0.0)
        return tl.load(weight_scale + weight_row // SCALE_ROWS * GROUPS + group)[:, None] * by_token[None, :]
    else:
        return 1.0


@triton.jit(do_not_specialize=["num_rows"])
def _scaled_gemm_m16_kernel(
    x: tl.tensor,
    x_scale: tl.tensor,
    weight: tl.tensor,
    weight_scale: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    norm: tl.tensor,
    out: tl.tensor,
    num_rows: int,
    eps: float,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    LARGEST: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    GROUPED: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
    LAST: tl.constexpr,
    AHEAD: tl.constexpr,
    QUANTIZE: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """With SwiGLU the weight is [2 N, K]: gates first. LAST is the width of the last tile, 0 if BLOCK_K divides K.

    With QUANTIZE x has floats, and TOKENS rows of it are read as `RowInput` says. Else x has HALVES rows a token, and BLOCK_M
    of them are read. ``num_rows`` are the tokens.
    """
    BLOCK_N: tl.constexpr = ROWS // 2 if SWIGLU else ROWS
    # Sums of products of eight-bit integers, of less than 132,000 channels, do not overflow.
    SUM: tl.constexpr = tl.int32 if HALVES == 2 and not GROUPED else tl.float32
    GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
    WHOLE: tl.constexpr = K // BLOCK_K * BLOCK_K
    first = tl.program_id(0) * BLOCK_N
    row = tl.arange(0, ROWS)
    weight_row = row // BLOCK_N * N + tl.minimum(first + row % BLOCK_N, N - 1)
    row_start = weight + weight_row.to(tl.int64)[:, None] * K
    m = tl.arange(0, BLOCK_M)
    token = m // HALVES
    x_row = tl.arange(0, TOKENS)[:, None]
    x_start = x + x_row * K
    there = x_row < (num_rows if QUANTIZE else HALVES * num_rows)
    channel = tl.arange(0, BLOCK_K)[None, :]
    # As wide as x, so that the compiler loads both alike.
    norm_start = norm + x_row * 0
    dtype: tl.constexpr = weight.dtype.element_ty
    tiles = no_tensors()
    norms = no_tensors()
    for early in tl.static_range(EARLY):
        tiles += (tl.load(row_start + early * BLOCK_K + channel),)
        norms += (tl.load(norm_start + early * BLOCK_K + channel) if NORM else 1.0,)
    if LAST:
        last_channel = WHOLE + tl.arange(0, LAST)[None, :]
        last_tile = tl.load(row_start + last_channel, mask=last_channel < K, other=0.0)
        last_norm = tl.load(norm_start + last_channel, mask=last_channel < K, other=0.0) if NORM else 1.0
    if OVERLAP and AHEAD > 0:
        prefetch(row_start + tl.minimum(EARLY * BLOCK_K + tl.arange(0, AHEAD // 128)[None, :] * 128, K - 1))
    wait_for_previous(OVERLAP)
    values = no_tensors()
    for early in tl.static_range(EARLY):
        values += (tl.load(x_start + early * BLOCK_K + channel, mask=there, other=0.0),)
    if LAST:
        last_value = tl.load(x_start + last_channel, mask=there & (last_channel < K), other=0.0)
    inverse = inverse_norms(x, num_rows, eps, K, TOKENS, WIDTH, PARTS) if NORM else 1.0
    largest = 1.0
    if QUANTIZE and not GROUPED:
        largest = largest_magnitudes(x, norm, inverse, num_rows, K, TOKENS, WIDTH, PARTS, NORM)
    # All of them before the first product: threads wait for each other once.
    early_values = no_tensors()
    factors = no_tensors()
    for early in tl.static_range(EARLY):
        value, largest_here = _right_of(
            values[early], inverse, norms[early], largest,
            dtype, LARGEST, GROUPED, HALVES, BLOCK_M, NORM, QUANTIZE,
        )  # fmt: skip
        early_values += (value,)
        factors += (_factor(
            largest_here, x_scale, token, num_rows, weight_scale, weight_row, early,
            LARGEST, GROUPS, SCALE_ROWS, GROUPED, HALVES, QUANTIZE,
        ),)  # fmt: skip
    if LAST:
        last, last_largest = _right_of(
            last_value, inverse, last_norm, largest,
            dtype, LARGEST, GROUPED, HALVES, BLOCK_M, NORM, QUANTIZE,
        )  # fmt: skip
        last_factor = _factor(
            last_largest, x_scale, token, num_rows, weight_scale, weight_row, WHOLE // GROUP,
            LARGEST, GROUPS, SCALE_ROWS, GROUPED, HALVES, QUANTIZE,
        )  # fmt: skip
    acc = tl.zeros([ROWS, BLOCK_M], SUM)
    for early in tl.static_range(EARLY):
        acc = _add_product(acc, early_values[early], tiles[early], factors[early], GROUPED)
    if EARLY * BLOCK_K < WHOLE:
        for k in tl.range(EARLY * BLOCK_K, WHOLE, BLOCK_K):
            later, later_largest = _right_of(
                tl.load(x_start + k + channel, mask=there, other=0.0),
                inverse, tl.load(norm_start + k + channel) if NORM else 1.0, largest,
                dtype, LARGEST, GROUPED, HALVES, BLOCK_M, NORM, QUANTIZE,
            )  # fmt: skip
            later_factor = _factor(
                later_largest, x_scale, token, num_rows, weight_scale, weight_row, k // GROUP,
                LARGEST, GROUPS, SCALE_ROWS, GROUPED, HALVES, QUANTIZE,
            )  # fmt: skip
            acc = _add_product(acc, later, tl.load(row_start + k + channel), later_factor, GROUPED)
    if LAST:
        acc = _add_product(acc, last, last_tile, last_factor, GROUPED)
    acc = join_halves(tl.trans(acc), HALVES)
    tokens = tl.arange(0, BLOCK_M // HALVES)[:, None]
    if not GROUPED:
        if QUANTIZE:
            acc *= each_repeated(scale_of(largest, LARGEST), 1, BLOCK_M // HALVES)[:, None]
        else:
            acc *= tl.load(x_scale + tokens, mask=tokens < num_rows, other=0.0)
        acc *= tl.load(weight_scale + weight_row // SCALE_ROWS)[None, :]
    up = acc
    if SWIGLU:
        acc, up = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M // HALVES, 2, BLOCK_N)), (0, 2, 1)))
    n = first + tl.arange(0, BLOCK_N)[None, :]
    mask = (tokens < num_rows) & (n < N)
    offset = tokens * N + n
    result = load_and_finish(
        acc, up, bias, residual, n, offset, mask, out.dtype.element_ty, N, BIAS, SWIGLU, ADD
    )  # fmt: skip
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=mask)


def scaled_gemm_m16_config(rows: int, *, grouped: bool) -> ScaledGemmM16Config:
    """A good division for ``rows`` weight rows; `benchmarks/quantization.py` compares others."""
    if grouped:
        return ScaledGemmM16Config(64, GROUP, early=4, num_stages=8)
    if rows > _MANY_ROWS:
        return ScaledGemmM16Config(128, 128, early=4, num_stages=5, ahead=512)
    # While the previous kernel ends, memory is idle: fetch what fits the L2 cache easily.
    ahead = 1 << min(max(_FETCHED // rows, 512), 2048).bit_length() - 1
    return ScaledGemmM16Config(64, 512, early=2, num_stages=4, ahead=ahead)


def _last(k: int, block_k: int) -> int:
    """The width of the last tile. The matrix units sum whole groups on their own."""
    return max(triton.next_power_of_2(k % block_k), GROUP) if k % block_k else 0


def can_quantize(x: Tensor, norm: tuple[Tensor, float] | None) -> bool:
    """Whether `scaled_gemm_m16` may quantize x in its launch, after the norm if there is one."""
    rows, k = x.shape
    return x.is_contiguous() and _quantizing(rows, k, norm) is not None


def _quantizing(rows: int, k: int, norm: tuple[Tensor, float] | None) -> RowInput | None:
    return RowInput.of(rows, k, _QUANTIZED_ROWS if norm is None else _NORM_ROWS)


def scaled_gemm_m16(
    x: Tensor,
    x_scale: Tensor | None,
    weight: ScaledWeight,
    bias: Tensor | None,
    *,
    dtype: torch.dtype,
    swiglu: bool = False,
    residual: Tensor | None = None,
    norm: tuple[Tensor, float] | None = None,
    overlap: bool = False,
    config: ScaledGemmM16Config | None = None,
    limits: DeviceLimits = UNLIMITED,
) -> Tensor:
    """`scaled_gemm` of up to `MAX_SCALED_GEMM_M16_ROWS` rows; the same arguments, and the same bits.

    Without ``x_scale``, x is [M, K] floats, which the launch quantizes, after the norm with [K] weights and an epsilon if there
    is one. It `can_quantize` them.

    Raises:
        ValueError: there are too many rows to be quantized.
    """
    num_rows, k = x.shape[0], x.shape[-1]
    halves = halves_of(weight.data.dtype)
    read = RowInput(MAX_SCALED_GEMM_M16_ROWS, 0, 0) if x_scale is not None else _quantizing(num_rows, k, norm)
    if read is None:
        raise ValueError(f"scaled_gemm_m16: {num_rows} rows of {k} channels are too many to quantize")
    norm_weight, eps = norm if norm is not None else (x, 0.0)
    weight_rows = weight.data.shape[0]
    n = weight_rows // 2 if swiglu else weight_rows
    config = config or fitting(
        scaled_gemm_m16_config(weight_rows, grouped=weight.grouped), lambda one: one.shared_bytes(limits, k), limits
    )
    out = torch.empty((num_rows, n), dtype=dtype, device=x.device)
    _scaled_gemm_m16_kernel[(triton.cdiv(n, config.block_n // 2 if swiglu else config.block_n),)](
        x,
        x_scale if x_scale is not None else out,
        weight.data,
        weight.scale,
        bias if bias is not None else out,
        residual if residual is not None else out,
        norm_weight,
        out,
        num_rows,
        eps,
        N=n,
        K=k,
        GROUP=GROUP,
        LARGEST=LARGEST[ACTIVATIONS[weight.data.dtype]],
        SCALE_ROWS=weight.rows,
        GROUPED=weight.grouped,
        HALVES=halves,
        BLOCK_M=MAX_SCALED_GEMM_M16_ROWS,
        TOKENS=read.tokens,
        WIDTH=read.width,
        PARTS=read.parts,
        ROWS=config.block_n,
        BLOCK_K=config.block_k,
        EARLY=min(config.early, k // config.block_k),
        LAST=_last(k, config.block_k),
        AHEAD=config.ahead,
        QUANTIZE=x_scale is None,
        NORM=norm is not None,
        BIAS=bias is not None,
        SWIGLU=swiglu,
        ADD=residual is not None,
        OVERLAP=overlap,
        num_warps=4,
        num_stages=config.num_stages,
        **launch_options(overlap),
    )
    return out
