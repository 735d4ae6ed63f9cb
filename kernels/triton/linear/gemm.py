"""Linear layers for any number of tokens, on the matrix units: [M, K] times [N, K] transposed.

A program owns a tile of the result, or takes one after the other where there are many: then the first factors of the next tile
are on their way while it finishes this one. The hardware copies tiles of both factors, several ahead (tensor descriptors; fast from
compute capability 9.0 on). SwiGLU's activation and the addition to the residual stream are part of the launch.

Exact float32 products run here too, by the plain arithmetic units: one multiply-add after the other, at every number of
tokens. Not here: few tokens (`gemm_m16.py`), quantized weights.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from draftline.kernels.triton.device import UNLIMITED, DeviceLimits, fitting
from draftline.kernels.triton.linear.epilogue import added, finish, load_addends
from draftline.kernels.triton.linear.gemm_config import GemmConfig, config_for
from draftline.kernels.triton.linear.parts import part_channels
from draftline.kernels.triton.linear.tiles import place_of_tile
from draftline.kernels.triton.overlap import launch_options, prefetch, wait_for_previous
from draftline.kernels.triton.rows import empty_rows, rows_with_room

_LEAST_FIRST = 64
"""Rows of the first factor of the matrix units' instruction (compute capability 9.0). For fewer tokens, the weight comes
first: then a program copies no rows of padding. Gates and ups are the second factor: the first would go through registers."""

# Where launches overlap, elements of each weight row to prefetch before the wait for the previous kernel.
_AHEAD = tl.constexpr(256)


@triton.jit
def _added(
    value: tl.tensor, weight: tl.tensor, acc: tl.tensor, WEIGHT_FIRST: tl.constexpr, PRECISION: tl.constexpr
) -> tl.tensor:
    """``acc`` and the product of tiles [M, K] and [N, K]: [M, N], or [N, M] where the weight is the first factor."""
    if WEIGHT_FIRST:
        acc = tl.dot(weight, tl.trans(value), acc, input_precision=PRECISION)
    else:
        acc = tl.dot(value, tl.trans(weight), acc, input_precision=PRECISION)
    return acc


@triton.jit
def _multiply(
    first_m: tl.tensor,
    first_n: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PART: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
    ADDENDS_FIRST: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One tile of the result. With SwiGLU a tile of the weight has gates, and behind them as many ups: one product for both.

    PART is the channels of a part of the sum (`parts.py`), a multiple of BLOCK_K, or 0. ADDENDS_FIRST: load what is added to
    the product before it.
    """
    m = tl.arange(0, BLOCK_M)[:, None]
    n = first_n + tl.arange(0, BLOCK_N)[None, :]
    # Offsets within the tile take half the registers of those from the beginning.
    start = first_m.to(tl.int64) * N
    offset = m * N + n
    mask = (first_m + m < num_rows) & (n < N)
    if ADDENDS_FIRST:
        addends = load_addends(bias, residual + start, n, offset, mask, N, BIAS, SWIGLU, ADD)
    COLUMNS: tl.constexpr = 2 * BLOCK_N if SWIGLU else BLOCK_N
    acc = tl.zeros([COLUMNS, BLOCK_M] if WEIGHT_FIRST else [BLOCK_M, COLUMNS], tl.float32)
    total = acc
    left = PART
    for k in tl.range(0, K, BLOCK_K):
        value = x.load([first_m, k])
        columns = tl.reshape(weight.load([0, first_n, k]), (COLUMNS, BLOCK_K))
        acc = _added(value, columns, acc, WEIGHT_FIRST, PRECISION)
        if PART:
            # Not a loop a part: at its end the pipeline would be empty.
            left -= BLOCK_K
            if left == 0:
                total = added(acc, total)
                acc = tl.zeros(acc.shape, tl.float32)
                left = PART
    if PART:
        acc = added(acc, total)
    if WEIGHT_FIRST:
        acc = tl.trans(acc)
    up = acc
    if SWIGLU:
        acc, up = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N)), (0, 2, 1)))
    if not ADDENDS_FIRST:
        addends = load_addends(bias, residual + start, n, offset, mask, N, BIAS, SWIGLU, ADD)
    acc = finish(acc, up, addends, out.dtype.element_ty, BIAS, SWIGLU, ADD)
    tl.store(out + start + offset, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _gemm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    weight_start: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    num_rows: int,
    N: int,
    K: int,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PART: tl.constexpr,
    TILES_TOGETHER: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A program a tile. The weight is [1, N, K], with SwiGLU [2, N, K]: gates first."""
    first_m, first_n = place_of_tile(tl.program_id(0), num_rows, N, BLOCK_M, BLOCK_N, TILES_TOGETHER)
    if OVERLAP:
        rows = tl.minimum(first_n + tl.arange(0, BLOCK_N), N - 1).to(tl.int64)[:, None] * K
        line = tl.minimum(tl.arange(0, _AHEAD // 64)[None, :] * 64, K - 1)
        prefetch(weight_start + rows + line)
        if SWIGLU:
            prefetch(weight_start + tl.cast(N, tl.int64) * K + rows + line)
    wait_for_previous(OVERLAP)
    _multiply(
        first_m, first_n, x, weight, bias, residual, out, num_rows, N, K,
        BLOCK_M, BLOCK_N, BLOCK_K, PART, BIAS, SWIGLU, ADD, WEIGHT_FIRST, OVERLAP, PRECISION,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])
def _gemm_in_turn_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    num_rows: int,
    N: int,
    K: int,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PART: tl.constexpr,
    TILES_TOGETHER: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Tiles in turn: the loops over tiles and channels become one, whose pipeline does not end with a tile."""
    wait_for_previous(OVERLAP)
    tiles = tl.cdiv(num_rows, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        first_m, first_n = place_of_tile(tile, num_rows, N, BLOCK_M, BLOCK_N, TILES_TOGETHER)
        _multiply(
            first_m, first_n, x, weight, bias, residual, out, num_rows, N, K,
            BLOCK_M, BLOCK_N, BLOCK_K, PART, BIAS, SWIGLU, ADD, WEIGHT_FIRST, False, PRECISION,
        )  # fmt: skip


def gemm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    swiglu: bool = False,
    residual: Tensor | None = None,
    overlap: bool = False,
    config: GemmConfig | None = None,
    limits: DeviceLimits = UNLIMITED,
) -> Tensor:
    """``x @ weight.T + bias``: [M, K], [N, K], [N] -> [M, N], all contiguous, accumulated in float32.

    Args:
        x: [M, K].
        weight: [N, K]; with ``swiglu``, [2 N, K], gates first. A row is a multiple of 16 bytes.
        bias: [weight rows], or None.
        swiglu: return ``silu(gate) * up``.
        residual: [M, N], added to the result, or None.
        overlap: start before the previous kernel has ended.
        config: how the product is divided, instead of `config_for`.
        limits: the device's.
    """
    num_rows, k = x.shape
    halves = 2 if swiglu else 1
    n, part = weight.shape[0] // halves, part_channels(weight)
    config = config or fitting(
        config_for(x, weight, part, swiglu=swiglu),
        lambda one: one.shared_bytes(limits, x.element_size(), swiglu=swiglu),
        limits,
    )
    if part % config.block_k:
        raise ValueError(f"tiles of {config.block_k} channels do not divide parts of {part}")
    out = empty_rows(num_rows, n, dtype=x.dtype, device=x.device)
    tiles = config.tiles(num_rows, n)
    channels = TensorDescriptor(x, [rows_with_room(x), k], [k, 1], [config.block_m, config.block_k])
    columns = TensorDescriptor(weight, [halves, n, k], [n * k, k, 1], [halves, config.block_n, config.block_k])
    # An unused argument must still be a tensor.
    others = (bias if bias is not None else x, residual if residual is not None else x, out, num_rows, n, k)
    options = {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "PART": part,
        "TILES_TOGETHER": config.tiles_together,
        "BIAS": bias is not None,
        "SWIGLU": swiglu,
        "ADD": residual is not None,
        "WEIGHT_FIRST": config.block_m < _LEAST_FIRST,
        "OVERLAP": overlap,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        **launch_options(overlap),
    }
    if config.in_turn:
        _gemm_in_turn_kernel[(min(tiles, config.in_turn * limits.num_sms),)](channels, columns, *others, **options)
    else:
        _gemm_kernel[(tiles,)](channels, columns, weight, *others, **options)
    return out
