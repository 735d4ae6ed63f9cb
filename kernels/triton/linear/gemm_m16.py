"""Linear layers for up to 16 tokens, bound by reading the weight once: [M, K] times [N, K] transposed.

On the matrix units. A program owns a few weight rows and each of its warps a share of K, so that even a narrow layer has
enough loads in flight. The warps' partial sums are joined at the end. A row's result does not depend on the other rows of
x. SwiGLU's activation and the addition to the residual stream are part of the launch. So are both parts of the norm that
follows such an addition: the launch that adds multiplies by the norm's weight and sums squares, and the next launch
multiplies its results by the remaining factor (`kernels.residual`).

Not here: one token (`gemv.py`), more rows (`gemm_m64.py`, `gemm_split_k.py`, or the vendor's), quantized weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.residual import PreparedNorm, Residual
from draftline.kernels.triton.linear.epilogue import finish
from draftline.kernels.triton.overlap import launch_options, prefetch, wait_for_previous

MAX_GEMM_M16_ROWS = 16
"""The largest number of rows of x."""


@dataclass(frozen=True, slots=True)
class GemmM16Config:
    """How one product is divided.

    Attributes:
        block_n: output columns (weight rows) a program.
        block_k: elements of K an iteration takes, of all warps together. If that is all of K, there is no pipeline: where
            launches overlap, the weights are loaded before the wait for the previous kernel.
        num_warps: warps a program; each takes its share of ``block_k``.
        num_stages: depth of the pipeline that loads weights.
        ahead: where launches overlap, elements of each weight row to prefetch before the wait for the previous kernel.
    """

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    ahead: int = 0


@triton.jit(do_not_specialize=["num_rows"])
def _gemm_m16_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    norm: tl.tensor,
    scaled: tl.tensor,
    squares: tl.tensor,
    eps: float,
    num_rows: int,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    HELD: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    PREPARE: tl.constexpr,
    SQUARES: tl.constexpr,
    BLOCK_SQUARES: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A batch of SPLITS products, one a warp, each over its share of K. With SwiGLU the weight is [2 N, K].

    PREPARE writes a norm's ``scaled`` and ``squares``. SQUARES, if not 0, is how many ``squares`` each row of x has.
    """
    SHARE: tl.constexpr = BLOCK_K // SPLITS
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    k = tl.arange(0, SPLITS)[:, None, None] * SHARE + tl.arange(0, SHARE)[None, None, :]
    row_mask = (m < num_rows)[None, :, None]
    n_mask = (n < N)[None, :, None]
    x_offset = m[None, :, None] * K + k
    weight_offset = n[None, :, None].to(tl.int64) * K + k
    if OVERLAP and AHEAD > 0:
        line = tl.minimum(tl.arange(0, AHEAD // 64)[None, :] * 64, K - 1)
        rows = tl.minimum(n, N - 1).to(tl.int64)[:, None] * K
        prefetch(weight + rows + line)
        if SWIGLU:
            prefetch(weight + N * K + rows + line)
    acc = tl.zeros([SPLITS, BLOCK_M, BLOCK_N], tl.float32)
    acc_up = tl.zeros([SPLITS, BLOCK_M, BLOCK_N], tl.float32)
    out_mask = (m < num_rows)[:, None] & (n < N)[None, :]
    out_offset = m[:, None] * N + n[None, :]
    # Operands of the epilogue are loaded early: the weights' loads hide their latency.
    shift = None
    up_shift = None
    before = None
    if BIAS:
        shift = tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        if SWIGLU:
            up_shift = tl.load(bias + N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if PREPARE:
        factor = tl.load(norm + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if SQUARES > 0:
        part = tl.arange(0, BLOCK_SQUARES)[None, :]
        square_offset = m[:, None] * SQUARES + part
        square_mask = (m < num_rows)[:, None] & (part < SQUARES)
    if HELD:
        # All weights are loaded before the wait, and kept in registers.
        weight_mask = n_mask & (k < K)
        tile = tl.load(weight + weight_offset, mask=weight_mask, other=0.0)
        if SWIGLU:
            tile_up = tl.load(weight + N * K + weight_offset, mask=weight_mask, other=0.0)
        wait_for_previous(OVERLAP)
        if ADD:
            before = tl.load(residual + out_offset, mask=out_mask, other=0.0).to(tl.float32)
        if SQUARES > 0:
            square = tl.load(squares + square_offset, mask=square_mask, other=0.0)
        value = tl.load(x + x_offset, mask=row_mask & (k < K), other=0.0)
        acc = tl.dot(value, tl.permute(tile, (0, 2, 1)), acc, input_precision=PRECISION)
        if SWIGLU:
            acc_up = tl.dot(value, tl.permute(tile_up, (0, 2, 1)), acc_up, input_precision=PRECISION)
    else:
        wait_for_previous(OVERLAP)
        if ADD:
            before = tl.load(residual + out_offset, mask=out_mask, other=0.0).to(tl.float32)
        if SQUARES > 0:
            square = tl.load(squares + square_offset, mask=square_mask, other=0.0)
        for start in tl.range(0, K, BLOCK_K, num_stages=NUM_STAGES):
            k_mask = start + k < K
            tile = tl.load(weight + weight_offset + start, mask=n_mask & k_mask, other=0.0)
            value = tl.load(x + x_offset + start, mask=row_mask & k_mask, other=0.0)
            acc = tl.dot(value, tl.permute(tile, (0, 2, 1)), acc, input_precision=PRECISION)
            if SWIGLU:
                tile_up = tl.load(weight + N * K + weight_offset + start, mask=n_mask & k_mask, other=0.0)
                acc_up = tl.dot(value, tl.permute(tile_up, (0, 2, 1)), acc_up, input_precision=PRECISION)
    result = tl.sum(acc, axis=0)
    up = tl.sum(acc_up, axis=0)
    if SQUARES > 0:
        inverse = tl.rsqrt(tl.sum(square, axis=1) / K + eps)[:, None]
        result *= inverse
        up *= inverse
    result = finish(result, up, shift, up_shift, before, BIAS, SWIGLU, ADD)
    stored = result.to(out.dtype.element_ty)
    tl.store(out + out_offset, stored, mask=out_mask)
    if PREPARE:
        # Of the rounded values, which the next kernel reads; past N they are 0.
        wide = stored.to(tl.float32)
        tl.store(scaled + out_offset, (wide * factor).to(scaled.dtype.element_ty), mask=out_mask)
        target = squares + m * tl.num_programs(0) + tl.program_id(0)
        tl.store(target, tl.sum(tl.where(out_mask, wide * wide, 0.0), axis=1), mask=m < num_rows)


def gemm_m16_config(n: int, k: int) -> GemmM16Config:
    """A good division for ``n`` weight rows of ``k`` elements; `benchmarks/kernels.py` compares others."""
    if k <= 1024:
        return GemmM16Config(block_n=16, block_k=1024, num_warps=4, num_stages=1)
    if n > k:
        return GemmM16Config(block_n=16, block_k=256, num_warps=2, num_stages=5)
    if k <= 2048:
        return GemmM16Config(block_n=16, block_k=2048, num_warps=8, num_stages=1)
    return GemmM16Config(block_n=16, block_k=512, num_warps=4, num_stages=4)


def gemm_m16(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: tuple[Tensor, float] | None = None,
    swiglu: bool = False,
    overlap: bool = False,
    config: GemmM16Config | None = None,
) -> Tensor:
    """``x @ weight.T + bias``: [M, K], [N, K], [N] -> [M, N], all contiguous, accumulated in float32.

    Args:
        x: [M, K].
        weight: [N, K]; with ``swiglu``, [2 N, K], gates first.
        bias: [weight rows], or None.
        norm: where x is `PreparedNorm.scaled`, its ``squares`` and the norm's epsilon.
        swiglu: return ``silu(gate) * up``.
        overlap: start before the previous kernel has ended.
        config: how the product is divided, instead of `gemm_m16_config`.

    Raises:
        ValueError: M is 0 or more than `MAX_GEMM_M16_ROWS`.
    """
    squares, eps = norm if norm is not None else (None, 0.0)
    n = weight.shape[0] // 2 if swiglu else weight.shape[0]
    out = torch.empty((x.shape[0], n), dtype=x.dtype, device=x.device)
    config = config or gemm_m16_config(*weight.shape)
    _launch(x, weight, bias, out, config, squares=squares, eps=eps, swiglu=swiglu, overlap=overlap)
    return out


def gemm_m16_add(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    next_norm: Tensor | None,
    *,
    overlap: bool = False,
    config: GemmM16Config | None = None,
) -> Residual:
    """``residual + x @ weight.T + bias``, and the norm with the weight ``next_norm`` [N] prepared, where that is given.

    Args:
        x: [M, K].
        weight: [N, K].
        bias: [N], or None.
        residual: [M, N].
        next_norm: the weight of the norm that reads the result next, or None.
        overlap: start before the previous kernel has ended.
        config: how the product is divided, instead of `gemm_m16_config`.

    Raises:
        ValueError: M is 0 or more than `MAX_GEMM_M16_ROWS`.
    """
    config = config or gemm_m16_config(*weight.shape)
    out, prepared = torch.empty_like(residual), None
    if next_norm is not None:
        parts = triton.cdiv(weight.shape[0], config.block_n)
        squares = torch.empty((x.shape[0], parts), dtype=torch.float32, device=x.device)
        prepared = PreparedNorm(next_norm, torch.empty_like(residual), squares)
    _launch(x, weight, bias, out, config, residual=residual, prepare=prepared, overlap=overlap)
    return Residual(out, prepared)


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    config: GemmM16Config,
    *,
    residual: Tensor | None = None,
    prepare: PreparedNorm | None = None,
    squares: Tensor | None = None,
    eps: float = 0.0,
    swiglu: bool = False,
    overlap: bool,
) -> None:
    num_rows, k = x.shape
    if not 1 <= num_rows <= MAX_GEMM_M16_ROWS:
        raise ValueError(f"gemm_m16: x has {num_rows} rows; it takes 1 to {MAX_GEMM_M16_ROWS}")
    n, parts = out.shape[1], 0 if squares is None else squares.shape[1]
    _gemm_m16_kernel[(triton.cdiv(n, config.block_n),)](
        x,
        weight,
        bias if bias is not None else x,
        residual if residual is not None else x,
        out,
        prepare.weight if prepare is not None else x,
        prepare.scaled if prepare is not None else x,
        prepare.squares if prepare is not None else squares if squares is not None else x,
        eps,
        num_rows,
        N=n,
        K=k,
        BLOCK_M=16,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        SPLITS=config.num_warps,
        NUM_STAGES=config.num_stages,
        AHEAD=config.ahead,
        HELD=k <= config.block_k,
        BIAS=bias is not None,
        SWIGLU=swiglu,
        ADD=residual is not None,
        PREPARE=prepare is not None,
        SQUARES=parts,
        BLOCK_SQUARES=triton.next_power_of_2(parts),
        OVERLAP=overlap,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=config.num_warps,
        **launch_options(overlap),
    )
