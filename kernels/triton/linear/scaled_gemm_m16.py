"""Eight-bit linear layers for up to 16 rows, bound by reading the weight once: `gemm_m16.py` with quantized factors.

On the matrix units. A program owns a few weight rows, and each of its warps takes 128 channels an iteration. Where these
have scales, the warp scales their products before adding them to its sum. The warps' sums are joined at the end. Until
then the two halves of an integer activation are rows of x like any other. A token's result does not depend on the others.
SwiGLU's activation and the addition to the residual stream are part of the launch.

Not here: one token (`scaled_gemv.py`), and more rows, which fill the matrix units (`scaled_gemm.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.scaled import GROUP, ScaledWeight
from draftline.kernels.triton.linear.eight_bit import join_halves
from draftline.kernels.triton.linear.epilogue import load_and_finish
from draftline.kernels.triton.overlap import launch_options, wait_for_previous

MAX_SCALED_GEMM_M16_ROWS = 16
"""The largest number of rows of x; a half is a row."""


@dataclass(frozen=True, slots=True)
class ScaledGemmM16Config:
    """How one product is divided.

    Attributes:
        block_n: output columns (weight rows) a program.
        num_warps: warps a program; each takes 128 channels an iteration.
        num_stages: depth of the pipeline that loads weights.
    """

    block_n: int
    num_warps: int
    num_stages: int


@triton.jit
def _scales(
    scale: tl.tensor, n: tl.tensor, group: tl.tensor, mask: tl.tensor, ROWS: tl.constexpr, GROUPS: tl.constexpr
) -> tl.tensor:
    """The weight's scales [SPLITS, 1, BLOCK_N]."""
    return tl.load(scale + (n // ROWS)[None, None, :] * GROUPS + group[:, None, None], mask=mask, other=0.0)


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
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """A batch of SPLITS products, one a warp, each over its groups of K. With SwiGLU the weight is [2 N, K].

    x has HALVES rows a token, ``num_rows`` are the tokens.
    """
    # Sums of products of eight-bit integers, of less than 132,000 channels, do not overflow.
    SUM: tl.constexpr = tl.int32 if HALVES == 2 and not GROUPED else tl.float32
    GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.arange(0, BLOCK_M)
    token = row // HALVES
    split = tl.arange(0, SPLITS)
    k = split[:, None, None] * GROUP + tl.arange(0, GROUP)[None, None, :]
    row_mask = (token < num_rows)[None, :, None]
    n_mask = (n < N)[None, :, None]
    x_offset = row[None, :, None] * K + k
    weight_offset = n[None, :, None].to(tl.int64) * K + k
    acc = tl.zeros([SPLITS, BLOCK_M, BLOCK_N], SUM)
    acc_up = tl.zeros([SPLITS, BLOCK_M, BLOCK_N], SUM)
    wait_for_previous(OVERLAP)
    for start in tl.range(0, K, SPLITS * GROUP, num_stages=NUM_STAGES):
        k_mask = start + k < K
        group = start // GROUP + split
        tile = tl.load(weight + weight_offset + start, mask=n_mask & k_mask, other=0.0)
        value = tl.load(x + x_offset + start, mask=row_mask & k_mask, other=0.0)
        tile_up = tile
        if SWIGLU:
            tile_up = tl.load(weight + N * K + weight_offset + start, mask=n_mask & k_mask, other=0.0)
        if GROUPED:
            scale_mask = row_mask & (group < GROUPS)[:, None, None]
            x_scales = x_scale + group[:, None, None] * num_rows + token[None, :, None]
            factor = tl.load(x_scales, mask=scale_mask, other=0.0)
            weight_mask = (n < N)[None, None, :] & (group < GROUPS)[:, None, None]
            part = tl.dot(value, tl.permute(tile, (0, 2, 1))).to(tl.float32) * factor
            acc += part * _scales(weight_scale, n, group, weight_mask, SCALE_ROWS, GROUPS)
            if SWIGLU:
                part = tl.dot(value, tl.permute(tile_up, (0, 2, 1))).to(tl.float32) * factor
                acc_up += part * _scales(weight_scale, N + n, group, weight_mask, SCALE_ROWS, GROUPS)
        else:
            acc = tl.dot(value, tl.permute(tile, (0, 2, 1)), acc, out_dtype=SUM)
            if SWIGLU:
                acc_up = tl.dot(value, tl.permute(tile_up, (0, 2, 1)), acc_up, out_dtype=SUM)
    result = join_halves(tl.sum(acc, axis=0), HALVES)
    up = join_halves(tl.sum(acc_up, axis=0), HALVES)
    m = tl.arange(0, BLOCK_M // HALVES)
    out_mask = (m < num_rows)[:, None] & (n < N)[None, :]
    out_offset = m[:, None] * N + n[None, :]
    if not GROUPED:
        factor = tl.load(x_scale + m, mask=m < num_rows, other=0.0)[:, None]
        result *= factor
        up *= factor
        result *= tl.load(weight_scale + n // SCALE_ROWS, mask=n < N, other=0.0)[None, :]
        if SWIGLU:
            up *= tl.load(weight_scale + (N + n) // SCALE_ROWS, mask=n < N, other=0.0)[None, :]
    result = load_and_finish(result, up, bias, residual, n, out_offset, out_mask, N, BIAS, SWIGLU, ADD)
    tl.store(out + out_offset, result.to(out.dtype.element_ty), mask=out_mask)


def scaled_gemm_m16_config(n: int, k: int, *, grouped: bool) -> ScaledGemmM16Config:
    """A good division for ``n`` weight rows of ``k`` elements; `benchmarks/quantization.py` compares others.

    ``grouped`` says that channels have scales in groups.
    """
    if grouped:
        return ScaledGemmM16Config(block_n=32, num_warps=2 if n > k else 4, num_stages=4 if n > k else 3)
    if n <= k:
        return ScaledGemmM16Config(block_n=16, num_warps=4, num_stages=6)
    return ScaledGemmM16Config(block_n=16, num_warps=2, num_stages=5 if n >= 4 * k else 8)


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
) -> Tensor:
    """``x @ weight.T + bias``: [M, K], [N, K], [N] -> [M, N], all contiguous, accumulated in float32 or int32.

    Args:
        x: [M, H, K], values of the weight's type, see `quantize_rows`.
        x_scale: their scales, [ceil(K / 128) or 1, M] float32.
        weight: [N, K]; with ``swiglu``, [2 N, K], gates first.
        bias: [weight rows], or None.
        dtype: of the result.
        swiglu: return ``silu(gate) * up``.
        residual: [M, N], added to the result, or None.
        overlap: start before the previous kernel has ended.
        config: how the product is divided, instead of `scaled_gemm_m16_config`.

    Raises:
        ValueError: M * H is 0 or more than `MAX_SCALED_GEMM_M16_ROWS`.
    """
    num_rows, halves, k = x.shape
    if not 1 <= num_rows * halves <= MAX_SCALED_GEMM_M16_ROWS:
        raise ValueError(f"scaled_gemm_m16: x has {num_rows * halves} rows; it takes 1 to {MAX_SCALED_GEMM_M16_ROWS}")
    weight_rows = weight.data.shape[0]
    n = weight_rows // 2 if swiglu else weight_rows
    config = config or scaled_gemm_m16_config(weight_rows, k, grouped=weight.grouped)
    out = torch.empty((num_rows, n), dtype=dtype, device=x.device)
    _scaled_gemm_m16_kernel[(triton.cdiv(n, config.block_n),)](
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
        BLOCK_N=config.block_n,
        SPLITS=config.num_warps,
        NUM_STAGES=config.num_stages,
        BIAS=bias is not None,
        SWIGLU=swiglu,
        ADD=residual is not None,
        OVERLAP=overlap,
        num_warps=config.num_warps,
        **launch_options(overlap),
    )
    return out
