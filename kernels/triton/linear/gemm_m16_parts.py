"""Linear layers for few tokens whose sums are in parts (`parts.py`): [M, K] times [N, K] transposed, of a narrow weight.

As `gemm_m16.py`, but each of a program's four warps has a part of the channels, all tokens and all of the program's weight rows: the
product of a batch of four. The warps add their sums at the end, through shared memory. The weight is the left matrix, of which an
instruction multiplies 16 rows, with 8 tokens.

Of few tokens, all tiles that registers and shared memory hold are loaded before the wait for the previous kernel; of more, fewer or
none. Of a single token, each warp finds the norm's factor by itself, so that no warp waits for another before the product.

Not here: other weights (`gemm_m16.py`), many tokens (`gemm.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.device import UNLIMITED, DeviceLimits, fitting
from draftline.kernels.triton.linear.epilogue import finish, load_addends
from draftline.kernels.triton.linear.parts import PARTS, part_channels, sum_of_parts
from draftline.kernels.triton.linear.row_norm import MOST_ROWS, WARPS, row_factors, rows_read
from draftline.kernels.triton.linear.smaller import smaller_early_product
from draftline.kernels.triton.overlap import (
    AT_ONCE,
    PREPARED,
    WAITED,
    launch_options,
    prefetch,
    start_next,
    wait_for_previous,
)
from draftline.kernels.triton.pointwise.norms import normalized
from draftline.kernels.triton.rows import empty_rows
from draftline.kernels.triton.tuples import no_tensors

_LEAST_TOKENS = tl.constexpr(8)
"""Tokens of the right matrix of an instruction."""

_TOKENS = 16
"""The tokens of a program, where there are so many. With more, several programs read a weight's tile, and the L2 cache serves all but
the first."""

_SMALL_WEIGHT, _MOST_ROWS, _MOST_ROWS_OF_SMALL = 1 << 20, 48, 64
"""The rows of x up to which this kernel is the fastest one, of weights with more elements than that, and of others."""

_SMALL_PART, _MANY_PROGRAMS = 1 << 18, 110
"""The most elements of a part of a small weight, and the programs of 16 weight rows beyond which each should have 32."""

_MANY_TOKENS = 48
"""Rows of x from which on attention, whose programs then fill the device in any case, may start at once."""


@dataclass(frozen=True, slots=True)
class GemmM16PartsConfig:
    """How one product is divided.

    Attributes:
        block_n: weight rows a program, a power of two; with SwiGLU half of them are gates.
        block_k: channels of each part a tile, a power of two. Those that are left of a part are a last tile.
        early: tiles loaded before the wait for the previous kernel; so is the last one.
        num_stages: depth of the pipeline that loads the others.
        ahead: where launches overlap, channels of each part after the early ones to prefetch before that wait.
        starts_next: when the next kernel may start, as `overlap.py` names the times.
        tokens: rows of x a program, if there are more than `row_norm.MOST_ROWS` and it does not normalize them; a multiple of 8.
    """

    block_n: int
    block_k: int
    early: int
    num_stages: int = 3
    ahead: int = 0
    starts_next: int = AT_ONCE.value
    tokens: int = _TOKENS

    def smaller(self) -> GemmM16PartsConfig | None:
        """The next smaller division with the same results; None if there is none."""
        return smaller_early_product(self, self.early, least_k=64)

    def shared_bytes(self, part: int, itemsize: int) -> int:
        """The most shared memory of a program, for parts of so many channels."""
        column = int(PARTS) * itemsize
        loaded = min(self.early * self.block_k, part) + part % self.block_k
        early = loaded * self.block_n * column + self.block_k * self.tokens * column
        if loaded == part:
            return early
        # Batches are multiplied from registers, on every device, which saves one copy.
        return max(early, max(self.num_stages - 1, 1) * (self.block_n + self.tokens) * self.block_k * column)


@triton.jit
def _load(start: tl.tensor, channel: tl.tensor, left: tl.tensor, SHORT: tl.constexpr) -> tl.tensor:
    """Channels [., ., K] of all parts, zeros where a part has no more; SHORT says whether one has fewer than the others."""
    if SHORT:
        return tl.load(start + channel, mask=channel < left, other=0.0)
    else:
        return tl.load(start + channel)


@triton.jit
def _factor(value: tl.tensor, inverse: tl.tensor, scale: tl.tensor, M: tl.constexpr, NORM: tl.constexpr) -> tl.tensor:
    """A product's factor [PARTS, K, M] from rows of x [PARTS, TOKENS, K]: with NORM from their norm, rounded as its launch would."""
    if NORM:
        value = normalized(value.to(tl.float32), inverse, scale.to(tl.float32)).to(value.dtype)
    if value.shape[1] < M:
        value = tl.broadcast_to(value, (value.shape[0], M, value.shape[2]))
    return tl.permute(value, (0, 2, 1))


@triton.jit(do_not_specialize=["num_rows"])
def _gemm_m16_parts_kernel(
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
    PART: tl.constexpr,
    TOKENS: tl.constexpr,
    NORM: tl.constexpr,
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
    """With SwiGLU the weight is [2 N, K]: gates first. LAST is the width of a part's last tile, 0 if BLOCK_K divides it.

    A program reads TOKENS rows of x.
    """
    start_next(NEXT, OVERLAP)
    BLOCK_N: tl.constexpr = ROWS // 2 if SWIGLU else ROWS
    M: tl.constexpr = max(TOKENS, _LEAST_TOKENS)
    WHOLE: tl.constexpr = PART // BLOCK_K * BLOCK_K
    SHORT: tl.constexpr = K != PARTS * PART
    first = tl.program_id(0) * BLOCK_N
    start = tl.program_id(1) * TOKENS
    x += start * K
    part = tl.arange(0, PARTS)[:, None, None] * PART
    left = tl.minimum(K - part, PART)
    row = tl.arange(0, ROWS)
    row_index = row // BLOCK_N * N + tl.minimum(first + row % BLOCK_N, N - 1)
    row_start = weight + row_index.to(tl.int64)[None, :, None] * K + part
    token = tl.arange(0, TOKENS)[None, :, None]
    x_start = x + token * K + part
    seen = start + token < num_rows
    channel = tl.arange(0, BLOCK_K)[None, None, :]
    tiles = no_tensors()
    scales = no_tensors()
    for early in tl.static_range(EARLY):
        tiles += (_load(row_start, early * BLOCK_K + channel, left, SHORT),)
        scales += (_load(norm + part, early * BLOCK_K + channel, left, SHORT) if NORM else 1.0,)
    if LAST:
        last_channel = WHOLE + tl.arange(0, LAST)[None, None, :]
        last_tile = tl.load(row_start + last_channel, mask=last_channel < left, other=0.0)
        last_scale = tl.load(norm + part + last_channel, mask=last_channel < left, other=0.0) if NORM else 1.0
    if OVERLAP and AHEAD > 0:
        line = EARLY * BLOCK_K + tl.arange(0, AHEAD // 64)[None, None, :] * 64
        prefetch(row_start + tl.minimum(line, left - 1))
    wait_for_previous(OVERLAP, NEXT)
    values = no_tensors()
    for early in tl.static_range(EARLY):
        early_channel = early * BLOCK_K + channel
        values += (tl.load(x_start + early_channel, mask=seen & (early_channel < left), other=0.0),)
    if LAST:
        last_value = tl.load(x_start + last_channel, mask=seen & (last_channel < left), other=0.0)
    n = first + tl.arange(0, BLOCK_N)[:, None]
    m = tl.arange(0, M)[None, :]
    mask = (start + m < num_rows) & (n < N)
    offset = start * N + m * N + n
    addends = load_addends(bias, residual, n, offset, mask, N, BIAS, SWIGLU, ADD)
    inverse = 1.0
    if NORM:
        if TOKENS == 1:
            inverse = row_factors(x, PARTS, 0, eps, K, WIDTH, PARTS)[:, None, None]
        else:
            inverse = row_factors(x, num_rows - start, K, eps, K, WIDTH, TOKENS)[None, :, None]
    acc = tl.zeros([PARTS, ROWS, M], tl.float32)
    for early in tl.static_range(EARLY):
        acc = tl.dot(tiles[early], _factor(values[early], inverse, scales[early], M, NORM), acc)
    if EARLY * BLOCK_K < WHOLE:
        for k in tl.range(EARLY * BLOCK_K, WHOLE, BLOCK_K):
            scale = _load(norm + part, k + channel, left, SHORT) if NORM else 1.0
            later = tl.load(x_start + k + channel, mask=seen & (k + channel < left), other=0.0)
            acc = tl.dot(_load(row_start, k + channel, left, SHORT), _factor(later, inverse, scale, M, NORM), acc)
    if LAST:
        acc = tl.dot(last_tile, _factor(last_value, inverse, last_scale, M, NORM), acc)
    total = sum_of_parts(acc)
    up = total
    if SWIGLU:
        total, up = tl.split(tl.permute(tl.reshape(total, (2, BLOCK_N, M)), (1, 2, 0)))
    result = finish(total, up, addends, out.dtype.element_ty, BIAS, SWIGLU, ADD)
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=mask)


def max_parts_rows(weight_elements: int) -> int:
    """The rows of x up to which a product in parts with so large a weight is fastest here."""
    return _MOST_ROWS_OF_SMALL if weight_elements <= _SMALL_WEIGHT else _MOST_ROWS


def gemm_m16_parts_config(tokens: int, rows: int, part: int, *, attends: bool = False) -> GemmM16PartsConfig:
    """A good division for so many rows of x, weight rows, and channels of a part; ``attends`` says that attention is the next kernel."""
    if attends and part <= 256:
        if tokens <= MOST_ROWS:
            return GemmM16PartsConfig(32, 128, early=2, starts_next=WAITED.value)
        programs = -(-rows // 16) * -(-tokens // _TOKENS)
        next_one = WAITED if tokens < _MANY_TOKENS else AT_ONCE
        return GemmM16PartsConfig(32 if programs > _MANY_PROGRAMS else 16, 256, early=1, starts_next=next_one.value)
    if rows * part <= _SMALL_PART:
        return _small_config(tokens, part)
    if part <= 512:
        if tokens <= MOST_ROWS:
            return GemmM16PartsConfig(16, 256, early=2)
        if tokens < _TOKENS:
            return GemmM16PartsConfig(16, 128, early=1, ahead=256)
        return GemmM16PartsConfig(32, 256, early=2)
    if tokens < _TOKENS:
        return GemmM16PartsConfig(16, 256, early=3, ahead=256 if part > 768 else 0)
    # So many early tiles would fill the registers.
    if tokens <= 2 * _TOKENS:
        return GemmM16PartsConfig(16, 256, early=0, ahead=256)
    return GemmM16PartsConfig(32, 128, early=0, num_stages=4, ahead=256)


def _small_config(tokens: int, part: int) -> GemmM16PartsConfig:
    """The same of a small weight, which attention does not follow."""
    if tokens <= MOST_ROWS:
        return GemmM16PartsConfig(16, 256, early=1)
    if tokens <= _TOKENS:
        return GemmM16PartsConfig(16 if part <= 256 else 32, 256, early=1, starts_next=PREPARED.value)
    if tokens <= 2 * _TOKENS:
        # As many programs as with tiles of 16 weight rows and 16 tokens, and fewer sums to join.
        next_one = AT_ONCE if part <= 256 else PREPARED
        return GemmM16PartsConfig(32, 256, early=1, starts_next=next_one.value, tokens=8)
    if part > 256 and tokens > _MOST_ROWS:
        return GemmM16PartsConfig(16, 128, early=2, ahead=256)
    return GemmM16PartsConfig(32, 256, early=1, starts_next=PREPARED.value)


def gemm_m16_parts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    swiglu: bool = False,
    residual: Tensor | None = None,
    norm: tuple[Tensor, float] | None = None,
    overlap: bool = False,
    config: GemmM16PartsConfig | None = None,
    limits: DeviceLimits = UNLIMITED,
) -> Tensor:
    """`gemm_m16` of a weight that `part_channels` gives parts. The arguments are the same, but for ``config``."""
    num_rows, k = x.shape
    n = weight.shape[0] // 2 if swiglu else weight.shape[0]
    part = part_channels(weight)
    config = config or fitting(
        gemm_m16_parts_config(num_rows, weight.shape[0], part, attends=norm is not None and not swiglu),
        lambda one: one.shared_bytes(part, x.element_size()),
        limits,
    )
    scale, eps = norm or (x, 0.0)
    tokens = rows_read(num_rows)[0] if norm or num_rows <= MOST_ROWS else config.tokens
    block_n, rest = config.block_n // 2 if swiglu else config.block_n, part % config.block_k
    out = empty_rows(num_rows, n, dtype=x.dtype, device=x.device)
    _gemm_m16_parts_kernel[(triton.cdiv(n, block_n), triton.cdiv(num_rows, tokens))](
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
        PART=part,
        TOKENS=tokens,
        NORM=norm is not None,
        WIDTH=triton.next_power_of_2(k) if norm else 0,
        ROWS=config.block_n,
        BLOCK_K=config.block_k,
        EARLY=min(config.early, part // config.block_k),
        LAST=triton.next_power_of_2(rest) if rest else 0,
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
