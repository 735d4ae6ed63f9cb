"""FP8 linear layers for one token, bound by reading the weight once: `gemv.py` with quantized factors.

Every thread streams 16-byte pieces of a few weight rows through the plain arithmetic units. SwiGLU's activation and the
addition to the residual stream are part of the launch; the quantization of the input, and its norm, are not
(`quantize.py`). Nor are integers, which the units take longer to convert than to multiply (`scaled_skinny.py`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.scaled import GROUP, ScaledWeight
from draftline.kernels.triton.gemv import GemvConfig
from draftline.kernels.triton.overlap import launch_options, wait_for_previous

_VECTOR = tl.constexpr(16)


@triton.jit
def _weight_scale(
    scale: tl.tensor, row: tl.tensor, group: tl.tensor, mask: tl.tensor, ROWS: tl.constexpr, GROUPS: tl.constexpr
) -> tl.tensor:
    """The scales [BLOCK_N, CHUNKS] of a weight with one for ROWS rows and each group of columns."""
    return tl.load(scale + (row // ROWS)[:, None] * GROUPS + group, mask=mask, other=0.0)


@triton.jit
def _scaled_gemv_kernel(
    x: tl.tensor,
    x_scale: tl.tensor,
    weight: tl.tensor,
    weight_scale: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    BY_COLUMN: tl.constexpr,
    GROUPED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """The weight is [N, K], or [2 N, K] with SwiGLU: gates first."""
    CHUNKS: tl.constexpr = BLOCK_K // _VECTOR
    GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    weight_row = weight + row.to(tl.int64)[:, None, None] * K
    first = tl.arange(0, CHUNKS)[None, :] * _VECTOR
    chunk = tl.arange(0, CHUNKS)[None, :, None] * _VECTOR + tl.arange(0, _VECTOR)[None, None, :]
    row_mask = (row < N)[:, None, None]
    acc = tl.zeros([BLOCK_N, CHUNKS], tl.float32)
    acc_up = tl.zeros([BLOCK_N, CHUNKS], tl.float32)
    # Each iteration asks for the next weights before it uses its own, and the first are asked for before the wait.
    tile = tl.load(weight_row + chunk, mask=row_mask & (chunk < K), other=0.0)
    tile_up = tile
    if SWIGLU:
        tile_up = tl.load(weight_row + N * K + chunk, mask=row_mask & (chunk < K), other=0.0)
    wait_for_previous(OVERLAP)
    for start in tl.range(0, K, BLOCK_K):
        col = start + chunk
        next_tile = tile
        next_up = tile_up
        if K > BLOCK_K:
            next_mask = row_mask & (col + BLOCK_K < K)
            next_tile = tl.load(weight_row + col + BLOCK_K, mask=next_mask, other=0.0)
            if SWIGLU:
                next_up = tl.load(weight_row + N * K + col + BLOCK_K, mask=next_mask, other=0.0)
        value = tl.load(x + col, mask=col < K, other=0.0).to(tl.float32)
        part = tl.sum(tile.to(tl.float32) * value, axis=2)
        part_up = part
        if SWIGLU:
            part_up = tl.sum(tile_up.to(tl.float32) * value, axis=2)
        if GROUPED:
            in_row = start + first < K
            group = (start + first) // GROUP
            factor = tl.load(x_scale + group, mask=in_row, other=0.0)
            part *= factor
            part_up *= factor
            if BY_COLUMN:
                scale_mask = (row < N)[:, None] & in_row
                part *= _weight_scale(weight_scale, row, group, scale_mask, SCALE_ROWS, GROUPS)
                if SWIGLU:
                    part_up *= _weight_scale(weight_scale, N + row, group, scale_mask, SCALE_ROWS, GROUPS)
        acc += part
        if SWIGLU:
            acc_up += part_up
        tile = next_tile
        tile_up = next_up
    result = tl.sum(acc, axis=1)
    up = tl.sum(acc_up, axis=1)
    out_mask = row < N
    if not GROUPED:
        factor = tl.load(x_scale)
        result *= factor
        up *= factor
    if not BY_COLUMN:
        result *= tl.load(weight_scale + row // SCALE_ROWS, mask=out_mask, other=0.0)
        if SWIGLU:
            up *= tl.load(weight_scale + (N + row) // SCALE_ROWS, mask=out_mask, other=0.0)
    if BIAS:
        result += tl.load(bias + row, mask=out_mask, other=0.0).to(tl.float32)
        if SWIGLU:
            up += tl.load(bias + N + row, mask=out_mask, other=0.0).to(tl.float32)
    if SWIGLU:
        result = result / (1.0 + tl.exp(-result)) * up
    if ADD:
        result += tl.load(residual + row, mask=out_mask, other=0.0).to(tl.float32)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=out_mask)


def scaled_gemv_config(n: int, k: int) -> GemvConfig:
    """A division that suits a layer with ``n`` weight rows of ``k`` elements; `benchmarks/quantization.py` compares others.

    A program has whole rows in flight at once: a short row's loads are too few to wait for in turns.
    """
    block_k = triton.next_power_of_2(k)
    if n >= 4 * k:
        return GemvConfig(block_n=1, block_k=block_k, num_warps=max(block_k // 2048, 1))
    return GemvConfig(block_n=2 if block_k > 1024 else 4, block_k=block_k, num_warps=max(block_k // 2048, 1))


def scaled_gemv(
    x: Tensor,
    x_scale: Tensor,
    weight: ScaledWeight,
    bias: Tensor | None,
    *,
    dtype: torch.dtype,
    swiglu: bool = False,
    residual: Tensor | None = None,
    overlap: bool = False,
    config: GemvConfig | None = None,
) -> Tensor:
    """``x @ weight.T + bias`` of one row: [1, K], [N, K], [N] -> [1, N], contiguous, accumulated in float32.

    Args:
        x: [1, K], values of the weight's type.
        x_scale: their scales, [ceil(K / 128) or 1, 1] float32.
        weight: [N, K]; with ``swiglu``, [2 N, K], gates first.
        bias: [weight rows], or None.
        dtype: of the result.
        swiglu: return ``silu(gate) * up``.
        residual: [1, N], added to the result, or None.
        overlap: start before the previous kernel has ended.
        config: how the product is divided, instead of `scaled_gemv_config`.
    """
    rows, k = weight.data.shape
    n = rows // 2 if swiglu else rows
    config = config or scaled_gemv_config(rows, k)
    out = torch.empty((1, n), dtype=dtype, device=x.device)
    _scaled_gemv_kernel[(triton.cdiv(n, config.block_n),)](
        x,
        x_scale,
        weight.data,
        weight.scale,
        bias if bias is not None else out,
        residual if residual is not None else out,
        out,
        N=n,
        K=k,
        GROUP=GROUP,
        SCALE_ROWS=weight.rows,
        BY_COLUMN=weight.by_column,
        GROUPED=weight.grouped,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        BIAS=bias is not None,
        SWIGLU=swiglu,
        ADD=residual is not None,
        OVERLAP=overlap,
        num_warps=config.num_warps,
        **launch_options(overlap),
    )
    return out
