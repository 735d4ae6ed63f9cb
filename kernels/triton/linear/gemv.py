"""Linear layers for one token, bound by reading the weight once: [K] times [N, K] transposed.

Every thread streams 16-byte pieces of a few weight rows through the plain arithmetic units, and the program joins the
sums of its threads at the end. A layer's neighbours cost more as launches than as arithmetic here: the RMSNorm of the
input, SwiGLU's activation and the addition to the residual stream are part of the launch.

Not here: more tokens (`gemm_m16.py`), quantized weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.linear.epilogue import finish
from draftline.kernels.triton.overlap import launch_options, prefetch, wait_for_previous

_VECTOR = tl.constexpr(8)


@dataclass(frozen=True, slots=True)
class GemvConfig:
    """How one product is divided.

    Attributes:
        block_n: output columns a program.
        block_k: elements of K an iteration takes.
        num_warps: warps a program.
        ahead: where launches overlap, elements of each weight row to prefetch before the wait for the previous kernel.
    """

    block_n: int
    block_k: int
    num_warps: int
    ahead: int = 0


@triton.jit
def _gemv_kernel(
    x: tl.tensor,
    norm: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    eps: float,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    AHEAD: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """The weight is [N, K], or [2 N, K] with SwiGLU: gates first."""
    CHUNKS: tl.constexpr = BLOCK_K // _VECTOR
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    weight_row = weight + row.to(tl.int64)[:, None, None] * K
    chunk = tl.arange(0, CHUNKS)[None, :, None] * _VECTOR + tl.arange(0, _VECTOR)[None, None, :]
    row_mask = (row < N)[:, None, None]
    acc = tl.zeros([BLOCK_N, CHUNKS], tl.float32)
    acc_up = tl.zeros([BLOCK_N, CHUNKS], tl.float32)
    square = tl.zeros([1, CHUNKS], tl.float32)
    # Each iteration loads the next weights before it uses its own. The first are loaded before the wait.
    tile = tl.load(weight_row + chunk, mask=row_mask & (chunk < K), other=0.0)
    tile_up = tile
    if SWIGLU:
        tile_up = tl.load(weight_row + N * K + chunk, mask=row_mask & (chunk < K), other=0.0)
    if OVERLAP and AHEAD > BLOCK_K:
        # Lines of 64 elements.
        line = BLOCK_K + tl.arange(0, AHEAD // 64)[None, :, None] * 64
        line = tl.minimum(line, K - 1)
        rows = tl.minimum(row, N - 1).to(tl.int64)[:, None, None] * K
        prefetch(weight + rows + line)
        if SWIGLU:
            prefetch(weight + N * K + rows + line)
    # Operands of the epilogue are loaded here: the weights' loads hide their latency.
    out_mask = row < N
    shift = None
    up_shift = None
    before = None
    if BIAS:
        shift = tl.load(bias + row, mask=out_mask, other=0.0).to(tl.float32)
        if SWIGLU:
            up_shift = tl.load(bias + N + row, mask=out_mask, other=0.0).to(tl.float32)
    wait_for_previous(OVERLAP)
    if ADD:
        before = tl.load(residual + row, mask=out_mask, other=0.0).to(tl.float32)
    for start in tl.range(0, K, BLOCK_K):
        col = start + chunk
        col_mask = col < K
        next_mask = row_mask & (col + BLOCK_K < K)
        next_tile = tl.load(weight_row + col + BLOCK_K, mask=next_mask, other=0.0)
        next_up = next_tile
        if SWIGLU:
            next_up = tl.load(weight_row + N * K + col + BLOCK_K, mask=next_mask, other=0.0)
        value = tl.load(x + col, mask=col_mask, other=0.0).to(tl.float32)
        if NORM:
            square += tl.sum(value * value, axis=2)
            value *= tl.load(norm + col, mask=col_mask, other=0.0).to(tl.float32)
        acc += tl.sum(tile.to(tl.float32) * value, axis=2)
        if SWIGLU:
            acc_up += tl.sum(tile_up.to(tl.float32) * value, axis=2)
        tile = next_tile
        tile_up = next_up
    result = tl.sum(acc, axis=1)
    up = tl.sum(acc_up, axis=1)
    if NORM:
        inverse = tl.rsqrt(tl.sum(tl.sum(square, axis=1), axis=0) / K + eps)
        result *= inverse
        up *= inverse
    result = finish(result, up, shift, up_shift, before, BIAS, SWIGLU, ADD)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=out_mask)


def gemv_config(n: int, k: int) -> GemvConfig:
    """A good division for ``n`` weight rows of ``k`` elements; `benchmarks/kernels.py` compares others."""
    if k >= 4096:
        return GemvConfig(block_n=1, block_k=1024, num_warps=1)
    if k > 1024:
        return GemvConfig(block_n=2, block_k=2048, num_warps=4)
    return GemvConfig(block_n=2, block_k=1024, num_warps=2)


def gemv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    norm: tuple[Tensor, float] | None = None,
    swiglu: bool = False,
    residual: Tensor | None = None,
    overlap: bool = False,
    config: GemvConfig | None = None,
) -> Tensor:
    """``x @ weight.T + bias`` of one row: [1, K], [N, K], [N] -> [1, N], contiguous, accumulated in float32.

    Args:
        x: [1, K].
        weight: [N, K]; with ``swiglu``, [2 N, K], gates first.
        bias: [weight rows], or None.
        norm: the [K] weights and the epsilon of an RMSNorm of x, or None.
        swiglu: return ``silu(gate) * up``.
        residual: [1, N], added to the result, or None.
        overlap: start before the previous kernel has ended.
        config: how the product is divided, instead of `gemv_config`.
    """
    rows, k = weight.shape
    n = rows // 2 if swiglu else rows
    config = config or gemv_config(rows, k)
    out = torch.empty((1, n), dtype=x.dtype, device=x.device)
    norm_weight, eps = norm if norm is not None else (x, 0.0)
    _gemv_kernel[(triton.cdiv(n, config.block_n),)](
        x,
        norm_weight,
        weight,
        bias if bias is not None else x,
        residual if residual is not None else x,
        out,
        eps,
        N=n,
        K=k,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        AHEAD=config.ahead,
        NORM=norm is not None,
        BIAS=bias is not None,
        SWIGLU=swiglu,
        ADD=residual is not None,
        OVERLAP=overlap,
        num_warps=config.num_warps,
        **launch_options(overlap),
    )
    return out
