"""Linear layers with few weight rows for up to 16 tokens: [M, K] times [N, K] transposed.

Such a layer is so small that its time is one load's latency and the sums' chain. So each part of K (`k_parts.py`) has a
warp, and a program has 8 or 16 weight rows. Each warp loads all weights of its part into registers before the wait for the
previous kernel, and multiplies them where they are (`fragments.py`). Then the parts are added. The addition to the residual
stream is part of the launch.

Not here: wide layers (`gemm_m16.py`), more tokens (`gemm_split_k.py`, `gemm.py`), quantized weights.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.linear.epilogue import load_and_finish
from draftline.kernels.triton.linear.fragments import multiply, positions
from draftline.kernels.triton.linear.gemm_m16 import MAX_GEMM_M16_ROWS
from draftline.kernels.triton.linear.k_parts import PARTS, part_size
from draftline.kernels.triton.overlap import launch_options, wait_for_previous

_STEP = tl.constexpr(32)
"""Channels that a warp multiplies at a time."""

_LONG_SHARE = 256
"""Channels of a part of which a warp holds 16 weight rows; of more channels it holds 8."""

MAX_SHARE = 1024
"""The most channels of a part that a warp's registers hold."""


@triton.jit
def _none() -> tl.tensor:
    """An empty tuple of tensors, to append to."""
    return ()


@triton.jit(do_not_specialize=["num_rows"])
def _gemm_m16_parts_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    num_rows: int,
    N: tl.constexpr,
    K: tl.constexpr,
    SHARE: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    first = tl.program_id(0) * ROWS
    # A warp's 8 rows of a tile belong to its part.
    lane = tl.arange(0, 8 * PARTS)[:, None]
    part = lane // 8
    token = lane % 8
    channel = tl.arange(0, _STEP)[None, :]
    row = first + token
    lows = _none()
    highs = _none()
    for step in tl.static_range(0, SHARE // _STEP):
        col = part * SHARE + step * _STEP + channel
        place = row.to(tl.int64) * K + col
        low = tl.load(weight + place, mask=(col < K) & (row < N), other=0.0)
        lows += (low,)
        if ROWS == 16:
            highs += (tl.load(weight + 8 * K + place, mask=(col < K) & (row + 8 < N), other=0.0),)
        else:
            highs += (tl.zeros_like(low),)
    wait_for_previous(OVERLAP)
    # All tokens are under way before the first is multiplied.
    values = _none()
    others = _none()
    for step in tl.static_range(0, SHARE // _STEP):
        col = part * SHARE + step * _STEP + channel
        value = tl.load(x + token * K + col, mask=(token < num_rows) & (col < K), other=0.0)
        values += (value,)
        if TILES == 2:
            others += (tl.load(x + (8 + token) * K + col, mask=(8 + token < num_rows) & (col < K), other=0.0),)
        else:
            others += (value,)
    acc = tl.zeros([8 * PARTS, _STEP], tl.float32)
    for step in tl.static_range(0, SHARE // _STEP):
        acc = multiply(acc, lows[step], highs[step], values[step], others[step], TILES)
    pairs = tl.sum(tl.reshape(acc, (2, 2, 8, _STEP)), axis=1)
    total = tl.sum(pairs, axis=0)
    own_row, m = positions()
    n = first + own_row
    mask = (m < num_rows) & (n < N) & (m < TILES * 8) & (own_row < ROWS)
    offset = m * N + n
    result = load_and_finish(
        total, total, bias, residual, n, offset, mask, out.dtype.element_ty, N, BIAS, False, ADD
    )  # fmt: skip
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=mask)


def gemm_m16_parts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    overlap: bool = False,
) -> Tensor:
    """``x @ weight.T + bias``: [M, K], [N, K], [N] -> [M, N], all contiguous, of 16-bit floats.

    Args:
        x: [M, K].
        weight: [N, K]. A row is a multiple of 16 bytes.
        bias: [N], or None.
        residual: [M, N], added to the result, or None.
        overlap: start before the previous kernel has ended.

    Raises:
        ValueError: M is 0 or more than `gemm_m16.MAX_GEMM_M16_ROWS`.
    """
    num_rows, k = x.shape
    if not 1 <= num_rows <= MAX_GEMM_M16_ROWS:
        raise ValueError(f"gemm_m16_parts: x has {num_rows} rows; it takes 1 to {MAX_GEMM_M16_ROWS}")
    n = weight.shape[0]
    share = part_size(k)
    # As many weights as a warp's registers hold.
    rows = 16 if share <= _LONG_SHARE else 8
    out = torch.empty((num_rows, n), dtype=x.dtype, device=x.device)
    _gemm_m16_parts_kernel[(triton.cdiv(n, rows),)](
        x,
        weight,
        bias if bias is not None else x,
        residual if residual is not None else x,
        out,
        num_rows,
        N=n,
        K=k,
        SHARE=share,
        PARTS=PARTS,
        ROWS=rows,
        TILES=1 if num_rows <= 8 else 2,
        BIAS=bias is not None,
        ADD=residual is not None,
        OVERLAP=overlap,
        num_warps=PARTS,
        **launch_options(overlap),
    )
    return out
