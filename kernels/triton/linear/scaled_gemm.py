"""Eight-bit linear layers for many tokens, on the matrix units: [M, K] times [N, K] transposed.

Where channels have scales, an iteration multiplies one group of 128, and adds it, scaled, to float32 sums. The two halves
of an integer activation are rows of x like any other; their sums are joined at the end. The hardware copies tiles where it
can (tensor descriptors; fast from compute capability 9.0 on). SwiGLU's activation and the addition to the residual stream
are part of the launch. A token's result does not depend on the others.

Where there are too few tiles to occupy the device, K is split. The last program adds the parts up in their order, so the
result does not depend on which program that is.

Not here: few tokens (`scaled_gemv.py`, `scaled_gemm_m16.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from draftline.kernels.scaled import GROUP, ScaledWeight
from draftline.kernels.triton.linear.eight_bit import join_halves
from draftline.kernels.triton.linear.epilogue import load_and_finish

_TILES_TOGETHER = 8
"""Row tiles whose programs run next to each other, so that they share tiles in the L2 cache."""

_EXACT_SUMS = tl.constexpr(128)
"""How many FP8 products the matrix units may sum on their own, with some 14 bits of the sum."""


@dataclass(frozen=True, slots=True)
class ScaledGemmConfig:
    """How one product is divided.

    Attributes:
        block_m: rows of x a program; a half is a row.
        block_n: output columns a program.
        num_warps: warps a program.
        num_stages: depth of the pipeline that loads both tiles.
        splits: parts of K, each a program's.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    splits: int = 1


@triton.jit
def _multiply(
    value: tl.tensor,
    tile: tl.tensor,
    acc: tl.tensor,
    factor: tl.tensor,
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
        acc += tl.dot(value, tl.trans(tile)).to(tl.float32) * (factor * by_column[None, :])
    else:
        acc = tl.dot(value, tl.trans(tile), acc, max_num_imprecise_acc=_EXACT_SUMS, out_dtype=acc.dtype)
    return acc


@triton.jit(do_not_specialize=["num_rows"])
def _scaled_gemm_kernel(
    x: tl.tensor,
    x_scale: tl.tensor,
    weight: tl.tensor,
    weight_scale: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    arrivals: tl.tensor,
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
    TILES_TOGETHER: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
) -> None:
    """With SwiGLU the weight is [2 N, K]: gates first. SwiGLU's K is not split.

    x has HALVES rows a token, ``num_rows`` are the tokens.
    """
    TOKENS: tl.constexpr = BLOCK_M // HALVES
    # Sums of products of eight-bit integers, of less than 132,000 channels, do not overflow.
    SUM: tl.constexpr = tl.int32 if HALVES == 2 and not GROUPED else tl.float32
    GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
    SHARE: tl.constexpr = (GROUPS + SPLITS - 1) // SPLITS
    TILES_N: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    pid = tl.program_id(0)
    band = pid // (TILES_TOGETHER * TILES_N)
    first_tile = band * TILES_TOGETHER
    in_band = tl.minimum(tl.cdiv(num_rows, TOKENS) - first_tile, TILES_TOGETHER)
    within = pid % (TILES_TOGETHER * TILES_N)
    first_m = (first_tile + within % in_band) * TOKENS
    first_n = within // in_band * BLOCK_N
    split = tl.program_id(1)
    n = first_n + tl.arange(0, BLOCK_N)
    token = first_m + tl.arange(0, BLOCK_M) // HALVES
    acc = tl.zeros([BLOCK_M, BLOCK_N], SUM)
    up = tl.zeros([BLOCK_M, BLOCK_N], SUM)
    factor = tl.full([BLOCK_M, 1], 1.0, tl.float32)
    for group in tl.range(split * SHARE, tl.minimum(split * SHARE + SHARE, GROUPS)):
        value = x.load([first_m * HALVES, group * GROUP])
        if GROUPED:
            factor = tl.load(x_scale + group * num_rows + token, mask=token < num_rows, other=0.0)[:, None]
        acc = _multiply(
            value, weight.load([first_n, group * GROUP]), acc, factor,
            weight_scale, n, n < N, group, GROUPS, SCALE_ROWS, GROUPED,
        )  # fmt: skip
        if SWIGLU:
            up = _multiply(
                value, weight.load([N + first_n, group * GROUP]), up, factor,
                weight_scale, N + n, n < N, group, GROUPS, SCALE_ROWS, GROUPED,
            )  # fmt: skip
    acc = join_halves(acc, HALVES)
    up = join_halves(up, HALVES)
    m = first_m + tl.arange(0, TOKENS)
    offset = m.to(tl.int64)[:, None] * N + n[None, :]
    mask = (m < num_rows)[:, None] & (n < N)[None, :]
    if SPLITS > 1:
        size = tl.cast(num_rows, tl.int64) * N
        tl.store(partial + split * size + offset, acc, mask=mask)
        # All threads' stores come before the one that announces them.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals + pid, 1, sem="acq_rel")
        if arrived < SPLITS - 1:
            return
        tl.store(arrivals + pid, 0)
        acc = tl.zeros([TOKENS, BLOCK_N], tl.float32)
        for part in tl.static_range(SPLITS):
            # Not through the L1 cache, which may lack other multiprocessors' stores.
            acc += tl.load(partial + part * size + offset, mask=mask, other=0.0, cache_modifier=".cg")
    if not GROUPED:
        factor = tl.load(x_scale + m, mask=m < num_rows, other=0.0)[:, None]
        acc *= factor
        up *= factor
        acc *= tl.load(weight_scale + n // SCALE_ROWS, mask=n < N, other=0.0)[None, :]
        if SWIGLU:
            up *= tl.load(weight_scale + (N + n) // SCALE_ROWS, mask=n < N, other=0.0)[None, :]
    acc = load_and_finish(acc, up, bias, residual, n, offset, mask, N, BIAS, SWIGLU, ADD)
    tl.store(out + offset, acc.to(out.dtype.element_ty), mask=mask)


def scaled_gemm_config(rows: int, n: int, k: int, *, swiglu: bool, max_tiles: int) -> ScaledGemmConfig:
    """A good division for these sizes; `benchmarks/quantization.py` compares others.

    Args:
        rows: rows of x; a half is a row.
        n: output columns.
        k: channels.
        swiglu: whether the weight has gates too.
        max_tiles: K is split for at most as many tiles.
    """
    if swiglu:
        if rows <= 64:
            return ScaledGemmConfig(block_m=64, block_n=128, num_warps=4, num_stages=4)
        # Two programs fit a multiprocessor: one multiplies while the other starts or ends.
        return ScaledGemmConfig(block_m=128, block_n=64, num_warps=8, num_stages=3)
    if rows > 256:
        return ScaledGemmConfig(block_m=128, block_n=128, num_warps=8, num_stages=3)
    tiles = -(-rows // 64) * -(-n // 64)
    splits = max(1, min(round(1.5 * max_tiles / tiles), 4, k // (8 * GROUP))) if tiles <= max_tiles else 1
    return ScaledGemmConfig(block_m=64, block_n=64, num_warps=4, num_stages=5, splits=splits)


def scaled_gemm(
    x: Tensor,
    x_scale: Tensor,
    weight: ScaledWeight,
    bias: Tensor | None,
    *,
    dtype: torch.dtype,
    arrivals: Tensor,
    swiglu: bool = False,
    residual: Tensor | None = None,
    config: ScaledGemmConfig | None = None,
) -> Tensor:
    """``x @ weight.T + bias``: [M, K], [N, K], [N] -> [M, N], all contiguous, accumulated in float32 or int32.

    Args:
        x: [M, H, K], values of the weight's type, see `quantize_rows`; K is a multiple of 16.
        x_scale: their scales, [ceil(K / 128) or 1, M] float32.
        weight: [N, K]; with ``swiglu``, [2 N, K], gates first.
        bias: [weight rows], or None.
        dtype: of the result.
        arrivals: int32 zeros, left as zeros, at least one for each tile whose K is split; no other stream may use them
            meanwhile.
        swiglu: return ``silu(gate) * up``.
        residual: [M, N], added to the result, or None.
        config: how the product is divided, instead of `scaled_gemm_config`.
    """
    num_rows, halves, k = x.shape
    weight_rows = weight.data.shape[0]
    n = weight_rows // 2 if swiglu else weight_rows
    config = config or scaled_gemm_config(num_rows * halves, n, k, swiglu=swiglu, max_tiles=arrivals.shape[0])
    out = torch.empty((num_rows, n), dtype=dtype, device=x.device)
    partial = out
    if config.splits > 1:
        partial = torch.empty((config.splits, num_rows, n), dtype=torch.float32, device=x.device)
    tiles = triton.cdiv(num_rows * halves, config.block_m) * triton.cdiv(n, config.block_n)
    _scaled_gemm_kernel[(tiles, config.splits)](
        TensorDescriptor(x, [num_rows * halves, k], [k, 1], [config.block_m, GROUP]),
        x_scale,
        TensorDescriptor(weight.data, [weight_rows, k], [k, 1], [config.block_n, GROUP]),
        weight.scale,
        bias if bias is not None else out,
        residual if residual is not None else out,
        out,
        partial,
        arrivals,
        num_rows,
        N=n,
        K=k,
        GROUP=GROUP,
        SCALE_ROWS=weight.rows,
        GROUPED=weight.grouped,
        HALVES=halves,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        SPLITS=config.splits,
        TILES_TOGETHER=_TILES_TOGETHER,
        BIAS=bias is not None,
        SWIGLU=swiglu,
        ADD=residual is not None,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out
