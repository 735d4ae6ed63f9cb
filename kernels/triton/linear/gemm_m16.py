"""Linear layers for few tokens, bound by reading the weight once: [M, K] times [N, K] transposed.

A program has 16 tokens. With more of them, several programs read a weight's tile, and the L2 cache serves all but the first.

No other kernel writes weights. So a program loads its first channels, of a small model all of them, before it waits for the
previous kernel: then only x is missing. The channels that follow are copied several tiles ahead. The norm of up to 8 tokens of a small
model is part of the launch (`row_norm.py`).

With 64 weight rows and more, the weight's tile is the left matrix of the product: one instruction multiplies 64 rows, and
all 16 tokens fit the right one. With fewer it is the right one, of which an instruction multiplies 8 rows. SwiGLU's
activation, for which half of a tile's rows are gates, and the addition to the residual stream are part of the launch.

Not here: narrow weights, whose sums are in parts (`gemm_m16_parts.py`), many tokens (`gemm.py`), quantized weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.device import UNLIMITED, DeviceLimits, fitting
from draftline.kernels.triton.linear.epilogue import finish, load_addends
from draftline.kernels.triton.linear.parts import part_channels
from draftline.kernels.triton.linear.row_norm import (
    MOST_CHANNELS,
    MOST_ROWS,
    MOST_ROWS_IN_PARTS,
    WARPS,
    repeated,
    row_factors,
    rows_read,
)
from draftline.kernels.triton.linear.smaller import smaller_early_product
from draftline.kernels.triton.overlap import AT_ONCE, PREPARED, launch_options, prefetch, start_next, wait_for_previous
from draftline.kernels.triton.pointwise.norms import normalized
from draftline.kernels.triton.rows import empty_rows
from draftline.kernels.triton.tuples import no_tensors

_ROWS = 16
"""Rows of x a program."""

_SMALL_WEIGHT, _MOST_ROWS = 2 << 20, 32
"""Weights of up to so many elements, and the rows of x up to which several programs read their tiles."""

_EARLY_CHANNELS = 1024
"""The most channels of which all tiles fit a multiprocessor's shared memory."""

_MANY_ROWS = 8192
"""Weight rows of which a device cannot hold all programs at once."""

_LONG_READ = 4096
"""The fewest channels of which a program reads so long that the next kernel's first weights should be on their way meanwhile."""


@dataclass(frozen=True, slots=True)
class GemmM16Config:
    """How one product is divided.

    Attributes:
        block_n: weight rows a program, a power of two; with SwiGLU half of them are gates.
        block_k: channels a tile, a power of two. Those that are left of K are a last tile.
        early: tiles loaded before the wait for the previous kernel; so is the last one.
        num_stages: depth of the pipeline that loads the others.
        ahead: where launches overlap, channels after the early ones to prefetch before that wait.
        starts_next: when the next kernel may start, as `overlap.py` names the times.
    """

    block_n: int
    block_k: int
    early: int
    num_stages: int
    ahead: int = 0
    starts_next: int = PREPARED.value

    def smaller(self) -> GemmM16Config | None:
        """The next smaller division with the same results; None if there is none."""
        return smaller_early_product(self, self.early, least_k=64)

    def shared_bytes(self, limits: DeviceLimits, k: int, itemsize: int) -> int:
        """The most shared memory of a program, for ``k`` channels."""
        row_bytes = (_ROWS + self.block_n) * itemsize
        early = self.early * self.block_k + k % self.block_k
        loop = limits.loop_bytes(row_bytes * self.block_k, self.num_stages) if early < k else 0
        # Registers hold the early tiles of few weight rows, which only pass through.
        return max(loop, row_bytes * self.block_k) if self.block_n < 64 else early * row_bytes + loop


@triton.jit
def _add_product(acc: tl.tensor, value: tl.tensor, tile: tl.tensor, LEFT: tl.constexpr) -> tl.tensor:
    """``acc`` and the product of tokens [M, K] and weight rows [R, K], as [M, R], or [R, M] with LEFT."""
    if LEFT:
        return tl.dot(tile, tl.trans(value), acc)
    else:
        return tl.dot(value, tl.trans(tile), acc)


@triton.jit
def _factor(
    value: tl.tensor, inverse: tl.tensor, scale: tl.tensor, BLOCK_M: tl.constexpr, NORM_ROWS: tl.constexpr
) -> tl.tensor:
    """A product's factor [BLOCK_M, K] from rows of x: with NORM_ROWS from their norm, rounded as a norm's launch would."""
    if NORM_ROWS:
        value = normalized(value.to(tl.float32), inverse, scale.to(tl.float32)).to(value.dtype)
    return repeated(value, BLOCK_M)


@triton.jit(do_not_specialize=["num_rows"])
def _gemm_m16_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    norm: tl.tensor,
    out: tl.tensor,
    num_rows: int,
    eps: float,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TOKENS: tl.constexpr,
    NORM_ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
    LAST: tl.constexpr,
    AHEAD: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    NEXT: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """With SwiGLU the weight is [2 N, K]: gates first. LAST is the width of the last tile, 0 if BLOCK_K divides K.

    A program reads TOKENS rows of x: with NORM_ROWS, as `rows_read` says, else BLOCK_M.
    """
    start_next(NEXT, OVERLAP)
    BLOCK_N: tl.constexpr = ROWS // 2 if SWIGLU else ROWS
    LEFT: tl.constexpr = ROWS >= 64
    WHOLE: tl.constexpr = K // BLOCK_K * BLOCK_K
    first = tl.program_id(0) * BLOCK_N
    start = tl.program_id(1) * BLOCK_M
    x += start * K
    row = tl.arange(0, ROWS)
    row_start = weight + (row // BLOCK_N * N + tl.minimum(first + row % BLOCK_N, N - 1)).to(tl.int64)[:, None] * K
    token = tl.arange(0, TOKENS)[:, None]
    x_start = x + token * K
    seen = start + token < num_rows
    channel = tl.arange(0, BLOCK_K)[None, :]
    tiles = no_tensors()
    scales = no_tensors()
    for early in tl.static_range(EARLY):
        tiles += (tl.load(row_start + early * BLOCK_K + channel),)
        scales += (tl.load(norm + early * BLOCK_K + channel) if NORM_ROWS else 1.0,)
    if LAST:
        last_channel = WHOLE + tl.arange(0, LAST)[None, :]
        last_tile = tl.load(row_start + last_channel, mask=last_channel < K, other=0.0)
        last_scale = tl.load(norm + last_channel, mask=last_channel < K, other=0.0) if NORM_ROWS else 1.0
    if OVERLAP and AHEAD > 0:
        prefetch(row_start + tl.minimum(EARLY * BLOCK_K + tl.arange(0, AHEAD // 64)[None, :] * 64, K - 1))
    wait_for_previous(OVERLAP, NEXT)
    values = no_tensors()
    for early in tl.static_range(EARLY):
        values += (tl.load(x_start + early * BLOCK_K + channel, mask=seen, other=0.0),)
    if LAST:
        last_value = tl.load(x_start + last_channel, mask=seen & (last_channel < K), other=0.0)
    m = tl.arange(0, BLOCK_M)[:, None]
    n = first + tl.arange(0, BLOCK_N)[None, :]
    mask = (start + m < num_rows) & (n < N)
    offset = start * N + m * N + n
    addends = load_addends(bias, residual, n, offset, mask, N, BIAS, SWIGLU, ADD)
    inverse = 1.0
    if NORM_ROWS:
        factors = row_factors(x, num_rows - start, K, eps, K, WIDTH, NORM_ROWS)
        # Gathered, a tile that they multiply need not be laid out as the pieces are.
        inverse = tl.gather(factors, tl.arange(0, TOKENS) % NORM_ROWS, axis=0)[:, None]
    acc = tl.zeros([ROWS, BLOCK_M] if LEFT else [BLOCK_M, ROWS], tl.float32)
    for early in tl.static_range(EARLY):
        value = _factor(values[early], inverse, scales[early], BLOCK_M, NORM_ROWS)
        acc = _add_product(acc, value, tiles[early], LEFT)
    if EARLY * BLOCK_K < WHOLE:
        for k in tl.range(EARLY * BLOCK_K, WHOLE, BLOCK_K):
            scale = tl.load(norm + k + channel) if NORM_ROWS else 1.0
            later = tl.load(x_start + k + channel, mask=seen, other=0.0)
            value = _factor(later, inverse, scale, BLOCK_M, NORM_ROWS)
            acc = _add_product(acc, value, tl.load(row_start + k + channel), LEFT)
    if LAST:
        acc = _add_product(acc, _factor(last_value, inverse, last_scale, BLOCK_M, NORM_ROWS), last_tile, LEFT)
    if LEFT:
        acc = tl.trans(acc)
    up = acc
    if SWIGLU:
        acc, up = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N)), (0, 2, 1)))
    result = finish(acc, up, addends, out.dtype.element_ty, BIAS, SWIGLU, ADD)
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=mask)


def max_gemm_m16_rows(weight_elements: int, *, overlap: bool) -> int:
    """The rows of x up to which a product with so large a weight is fastest here."""
    return _MOST_ROWS if overlap and weight_elements <= _SMALL_WEIGHT else _ROWS


def gemm_m16_config(tokens: int, rows: int, k: int, *, overlap: bool) -> GemmM16Config:
    """A good division for so many rows of x, and weight rows of ``k`` channels; `benchmarks/kernels.py` compares others."""
    if not overlap:
        return GemmM16Config(64, 128, early=0, num_stages=4)
    if rows > _MANY_ROWS:
        # Of so many programs that few run at once, most would prefetch in vain.
        return GemmM16Config(64, 128, early=2, num_stages=4, ahead=256 if rows <= 4 * _MANY_ROWS else 64)
    if k <= _EARLY_CHANNELS:
        if tokens > _ROWS:
            # Two programs read each tile of the weight: fewer and larger ones.
            return GemmM16Config(64, 256, early=k // 256, num_stages=1)
        # 32 rows of so few channels fit the registers of a program.
        block_k = 512 if k >= 512 else 128
        return GemmM16Config(32 if k <= 768 else 64, block_k, early=k // block_k, num_stages=1)
    if rows > 4096 or (rows > 2048 and k <= 2048):
        return GemmM16Config(64, 128, early=4 if k <= 2048 else 2, num_stages=5, ahead=256 if rows > 4096 else 512)
    # Few weight rows: narrow tiles, so that there are programs enough.
    if rows > 2048:
        if k <= 4096:
            return GemmM16Config(32, 512, early=0, num_stages=4, ahead=256)
        return GemmM16Config(32, 256, early=0, num_stages=6, ahead=256)
    if rows > 1024:
        return GemmM16Config(32, 512, early=1, num_stages=4, ahead=1024)
    if k > 2048:
        return GemmM16Config(32, 256, early=2, num_stages=5, ahead=1024)
    if k > 1536:
        return GemmM16Config(64, 128, early=4, num_stages=5, ahead=1024)
    return GemmM16Config(32, 512, early=2, num_stages=4, ahead=1024)


def _config_for(x: Tensor, weight: Tensor, *, attends: bool, overlap: bool, limits: DeviceLimits) -> GemmM16Config:
    """A good division that fits the device. With ``attends`` the next kernel is attention, or an activation by itself."""
    rows, k = x.shape
    config = fitting(
        gemm_m16_config(rows, weight.shape[0], k, overlap=overlap),
        lambda one: one.shared_bytes(limits, k, x.element_size()),
        limits,
    )
    if attends:  # its programs take much room
        return config
    fills = 2 * config.shared_bytes(limits, k, x.element_size()) > limits.shared_bytes
    at_once = fills or k >= _LONG_READ or rows == 1 or rows > _ROWS
    return replace(config, starts_next=AT_ONCE.value) if at_once else config


def can_normalize(x: Tensor, weight: Tensor) -> bool:
    """Whether a product of few rows should have the norm of x [M, K] in its launch: there are not too many rows, channels or programs."""
    rows, k = x.shape
    most = MOST_ROWS_IN_PARTS if part_channels(weight) else MOST_ROWS
    return rows <= most and k <= MOST_CHANNELS and weight.shape[0] <= _MANY_ROWS and x.is_contiguous()


def gemm_m16(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    swiglu: bool = False,
    residual: Tensor | None = None,
    norm: tuple[Tensor, float] | None = None,
    overlap: bool = False,
    config: GemmM16Config | None = None,
    limits: DeviceLimits = UNLIMITED,
) -> Tensor:
    """``x @ weight.T + bias``: [M, K], [N, K], [N] -> [M, N], all contiguous, of 16-bit floats.

    Args:
        x: [M, K].
        weight: [N, K]; with ``swiglu``, [2 N, K], gates first. A row is a multiple of 16 bytes.
        bias: [weight rows], or None.
        swiglu: return ``silu(gate) * up``.
        residual: [M, N], added to the result, or None.
        norm: the [K] weights and the epsilon of an RMSNorm of x, which `can_normalize` holds for; or None.
        overlap: start before the previous kernel has ended.
        config: how the product is divided, instead of `gemm_m16_config`.
        limits: the device's.
    """
    num_rows, k = x.shape
    n = weight.shape[0] // 2 if swiglu else weight.shape[0]
    attends = norm is not None and not swiglu
    config = config or _config_for(x, weight, attends=attends, overlap=overlap, limits=limits)
    scale, eps = norm or (x, 0.0)
    tokens, norm_rows = rows_read(num_rows) if norm else (_ROWS, 0)
    out = empty_rows(num_rows, n, dtype=x.dtype, device=x.device)
    _gemm_m16_kernel[(triton.cdiv(n, config.block_n // 2 if swiglu else config.block_n), triton.cdiv(num_rows, _ROWS))](
        x,
        weight,
        bias if bias is not None else x,
        residual if residual is not None else x,
        scale,
        out,
        num_rows,
        eps,
        N=n,
        K=k,
        BLOCK_M=_ROWS,
        TOKENS=tokens,
        NORM_ROWS=norm_rows,
        WIDTH=triton.next_power_of_2(k) if norm else 0,
        ROWS=config.block_n,
        BLOCK_K=config.block_k,
        EARLY=min(config.early, k // config.block_k),
        LAST=max(triton.next_power_of_2(k % config.block_k), 16) if k % config.block_k else 0,
        AHEAD=config.ahead,
        BIAS=bias is not None,
        SWIGLU=swiglu,
        ADD=residual is not None,
        NEXT=config.starts_next,
        OVERLAP=overlap,
        num_warps=WARPS,
        num_stages=config.num_stages,
        **launch_options(overlap),
    )
    return out
