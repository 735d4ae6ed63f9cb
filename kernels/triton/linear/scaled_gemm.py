"""Eight-bit linear layers, on the matrix units: [M, K] times [N, K] transposed.

A group of 128 channels is multiplied at a time, from zero, and added to float32 sums: FP8 because the units keep only some 14
bits of longer sums, and wherever channels have scales. Integers with a scale a row are exact in int32. The groups' order is
the same for every tile and number of rows, so a token's result does not depend on the others.

The two halves of an integer activation are rows of x like any other; their sums are joined at the end. The hardware copies
tiles where it can (tensor descriptors; fast from compute capability 9.0 on). SwiGLU's activation and the addition to the
residual stream are part of the launch.

Not here: up to 16 rows (`scaled_gemm_m16.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from draftline.kernels.scaled import GROUP, ScaledWeight
from draftline.kernels.triton.device import UNLIMITED, DeviceLimits, fitting
from draftline.kernels.triton.linear.eight_bit import EXACT_SUMS, join_halves
from draftline.kernels.triton.linear.epilogue import load_and_finish
from draftline.kernels.triton.linear.smaller import smaller_product
from draftline.kernels.triton.overlap import launch_options, prefetch, wait_for_previous
from draftline.kernels.triton.rows import empty_rows, rows_with_room

_TILES_TOGETHER = 8
"""Row tiles whose programs run next to each other, so that they share tiles in the L2 cache."""


@dataclass(frozen=True, slots=True)
class ScaledGemmConfig:
    """How one product is divided.

    Attributes:
        block_m: rows of x a program; a half is a row.
        block_n: output columns a program.
        num_warps: warps a program.
        num_stages: depth of the pipeline that loads both tiles.
        block_k: channels an iteration: a group where channels have scales, else some groups.
        ahead: where launches overlap, channels of each weight row to prefetch before the wait for the previous kernel.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    block_k: int = GROUP
    ahead: int = 0

    def smaller(self) -> ScaledGemmConfig | None:
        """The next smaller division with the same results; None if there is none."""
        return smaller_product(self, least_k=GROUP)

    def shared_bytes(self, limits: DeviceLimits, *, swiglu: bool) -> int:
        """Shared memory of a program."""
        rows = self.block_m + (2 if swiglu else 1) * self.block_n
        return limits.loop_bytes(rows * self.block_k, self.num_stages)


@triton.jit
def _multiply(
    value: tl.tensor,
    tile: tl.tensor,
    acc: tl.tensor,
    by_row: tl.tensor,
    scale: tl.tensor,
    column: tl.tensor,
    column_mask: tl.tensor,
    group: tl.tensor,
    GROUPS: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    GROUPED: tl.constexpr,
) -> tl.tensor:
    """``acc`` and the product of two tiles, scaled by their groups' scales where they have some."""
    if GROUPED:
        by_column = tl.load(scale + column // SCALE_ROWS * GROUPS + group, mask=column_mask, other=0.0)
        return tl.fma(tl.dot(value, tl.trans(tile)).to(tl.float32), by_row[:, None] * by_column[None, :], acc)
    else:
        return tl.dot(value, tl.trans(tile), acc, max_num_imprecise_acc=EXACT_SUMS, out_dtype=acc.dtype)


@triton.jit(do_not_specialize=["num_rows"])
def _scaled_gemm_kernel(
    x: tl.tensor,
    x_scale: tl.tensor,
    weight: tl.tensor,
    weight_start: tl.tensor,
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
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    AHEAD: tl.constexpr,
    TILES_TOGETHER: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """With SwiGLU the weight is [2 N, K]: gates first.

    x has HALVES rows a token, ``num_rows`` are the tokens.
    """
    TOKENS: tl.constexpr = BLOCK_M // HALVES
    # Sums of products of eight-bit integers, of less than 132,000 channels, do not overflow.
    SUM: tl.constexpr = tl.int32 if HALVES == 2 and not GROUPED else tl.float32
    GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
    TILES_N: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    pid = tl.program_id(0)
    band = pid // (TILES_TOGETHER * TILES_N)
    first_tile = band * TILES_TOGETHER
    in_band = tl.minimum(tl.cdiv(num_rows, TOKENS) - first_tile, TILES_TOGETHER)
    within = pid % (TILES_TOGETHER * TILES_N)
    first_m = (first_tile + within % in_band) * TOKENS
    first_n = within // in_band * BLOCK_N
    n = first_n + tl.arange(0, BLOCK_N)
    token = first_m + tl.arange(0, BLOCK_M) // HALVES
    acc = tl.zeros([BLOCK_M, BLOCK_N], SUM)
    up = tl.zeros([BLOCK_M, BLOCK_N], SUM)
    by_row = tl.full([BLOCK_M], 1.0, tl.float32)
    if OVERLAP and AHEAD > 0:
        row_start = tl.minimum(n, N - 1).to(tl.int64)[:, None] * K
        line = tl.minimum(tl.arange(0, AHEAD // 128)[None, :] * 128, K - 1)
        prefetch(weight_start + row_start + line)
        if SWIGLU:
            prefetch(weight_start + N * K + row_start + line)
    wait_for_previous(OVERLAP)
    for k in tl.range(0, K, BLOCK_K):
        group = k // GROUP
        value = x.load([first_m * HALVES, k])
        if GROUPED:
            by_row = tl.load(x_scale + group * num_rows + token, mask=token < num_rows, other=0.0)
        acc = _multiply(
            value, weight.load([first_n, k]), acc, by_row,
            weight_scale, n, n < N, group, GROUPS, SCALE_ROWS, GROUPED,
        )  # fmt: skip
        if SWIGLU:
            up = _multiply(
                value, weight.load([N + first_n, k]), up, by_row,
                weight_scale, N + n, n < N, group, GROUPS, SCALE_ROWS, GROUPED,
            )  # fmt: skip
    acc = join_halves(acc, HALVES)
    up = join_halves(up, HALVES)
    m = first_m + tl.arange(0, TOKENS)
    offset = m.to(tl.int64)[:, None] * N + n[None, :]
    mask = (m < num_rows)[:, None] & (n < N)[None, :]
    if not GROUPED:
        factor = tl.load(x_scale + m, mask=m < num_rows, other=0.0)[:, None]
        acc *= factor
        up *= factor
        acc *= tl.load(weight_scale + n // SCALE_ROWS, mask=n < N, other=0.0)[None, :]
        if SWIGLU:
            up *= tl.load(weight_scale + (N + n) // SCALE_ROWS, mask=n < N, other=0.0)[None, :]
    acc = load_and_finish(acc, up, bias, residual, n, offset, mask, out.dtype.element_ty, N, BIAS, SWIGLU, ADD)
    tl.store(out + offset, acc.to(out.dtype.element_ty), mask=mask)


def scaled_gemm_config(rows: int, n: int, *, swiglu: bool, grouped: bool) -> ScaledGemmConfig:
    """A good division for these sizes; `benchmarks/quantization.py` compares others.

    Args:
        rows: rows of x; a half is a row.
        n: output columns.
        swiglu: whether the weight has gates too.
        grouped: whether channels have scales.
    """
    narrow = n <= 4096  # few programs
    if swiglu:
        if rows > 64:
            # Two programs fit a multiprocessor: one multiplies while the other starts or ends.
            return ScaledGemmConfig(128, 64, num_warps=8, num_stages=3)
        if grouped:
            return ScaledGemmConfig(64, 32, num_warps=4, num_stages=6, ahead=256)
        return ScaledGemmConfig(64, 128, num_warps=4, num_stages=4, ahead=256)
    if rows > 256:
        return ScaledGemmConfig(128, 128, num_warps=8 if grouped else 4, num_stages=3)
    if grouped:
        return ScaledGemmConfig(64, 32 if narrow else 64, num_warps=4, num_stages=8)
    if rows > 64:
        return ScaledGemmConfig(64, 64, num_warps=4, num_stages=4 if narrow else 3, block_k=256, ahead=256)
    if narrow:
        return ScaledGemmConfig(64, 32, num_warps=4, num_stages=4, block_k=512)
    if n <= 8192:
        return ScaledGemmConfig(64, 32, num_warps=4, num_stages=4, block_k=256, ahead=256)
    return ScaledGemmConfig(64, 64, num_warps=8, num_stages=4, block_k=256, ahead=256)


def scaled_gemm(
    x: Tensor,
    x_scale: Tensor,
    weight: ScaledWeight,
    bias: Tensor | None,
    *,
    dtype: torch.dtype,
    swiglu: bool = False,
    residual: Tensor | None = None,
    overlap: bool = False,
    config: ScaledGemmConfig | None = None,
    limits: DeviceLimits = UNLIMITED,
) -> Tensor:
    """``x @ weight.T + bias``: [M, K], [N, K], [N] -> [M, N], all contiguous, accumulated in float32 or int32.

    Args:
        x: [M, H, K], values of the weight's type, see `quantize_rows`; K is a multiple of 16.
        x_scale: their scales, [ceil(K / 128) or 1, M] float32.
        weight: [N, K]; with ``swiglu``, [2 N, K], gates first.
        bias: [weight rows], or None.
        dtype: of the result.
        swiglu: return ``silu(gate) * up``.
        residual: [M, N], added to the result, or None.
        overlap: start before the previous kernel has ended.
        config: how the product is divided, instead of `scaled_gemm_config`.
        limits: the device's.
    """
    num_rows, halves, k = x.shape
    weight_rows = weight.data.shape[0]
    n = weight_rows // 2 if swiglu else weight_rows
    config = config or fitting(
        scaled_gemm_config(num_rows * halves, n, swiglu=swiglu, grouped=weight.grouped),
        lambda one: one.shared_bytes(limits, swiglu=swiglu),
        limits,
    )
    out = empty_rows(num_rows, n, dtype=dtype, device=x.device)
    tiles = triton.cdiv(num_rows * halves, config.block_m) * triton.cdiv(n, config.block_n)
    _scaled_gemm_kernel[(tiles,)](
        TensorDescriptor(x, [rows_with_room(x.view(-1, k)), k], [k, 1], [config.block_m, config.block_k]),
        x_scale,
        TensorDescriptor(weight.data, [weight_rows, k], [k, 1], [config.block_n, config.block_k]),
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
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        AHEAD=config.ahead,
        TILES_TOGETHER=_TILES_TOGETHER,
        BIAS=bias is not None,
        SWIGLU=swiglu,
        ADD=residual is not None,
        OVERLAP=overlap,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **launch_options(overlap),
    )
    return out
