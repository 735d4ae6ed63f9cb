"""Eight-bit linear layers for up to 16 rows of x, bound by reading the weight once: [M, K] times [N, K] transposed.

The arithmetic is that of `scaled_gemm.py`, and so are the bits. The division is that of `gemm_m16.py`: a program loads its
first channels before it waits for the previous kernel, and copies those that follow several tiles ahead. The weight's tile is
the left matrix of the product, so that one instruction multiplies 64 of its rows, and all rows of x fit the right one.

A tile has two parts of each weight row and of each row of x: then an instruction's 64 rows are 32 weight rows twice. So there
are twice as many programs, and a sum over K takes half as many steps, which is what bounds few rows of many channels. The
parts are of two neighbouring spans of channels, each of which is summed on its own, tile by tile. Each part is multiplied by
both parts of x; half of the products are not used.

The two halves of an integer activation are rows of x like any other; their sums are joined at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.scaled import GROUP, ScaledWeight
from draftline.kernels.triton.device import UNLIMITED, DeviceLimits, fitting
from draftline.kernels.triton.linear.eight_bit import CHANNELS_OF_ONE_SUM, join_halves
from draftline.kernels.triton.linear.epilogue import finish, load_addends
from draftline.kernels.triton.linear.smaller import smaller_early_product
from draftline.kernels.triton.overlap import AT_ONCE, PREPARED, launch_options, prefetch, start_next, wait_for_previous
from draftline.kernels.triton.tuples import no_tensors

MAX_SCALED_GEMM_M16_ROWS = 16
"""The largest number of rows of x; a half is a row."""

_MANY_ROWS = 8192
"""Weight rows of which a device cannot hold all programs at once."""

_VOCABULARY = 65536
"""Weight rows that only an output projection has more of: gates and ups of 70 billion parameters have 57,344."""

_MANY_CHANNELS = 8192
"""Channels whose sums take a program longer than their bytes take the memory, unless more programs share the rows."""


@dataclass(frozen=True, slots=True)
class ScaledGemmM16Config:
    """How one product is divided.

    Attributes:
        block_n: weight rows a program, a power of two; with SwiGLU half of them are gates.
        block_k: channels of a part: a group where channels have scales, else some.
        early: tiles loaded before the wait for the previous kernel.
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

    def smaller(self) -> ScaledGemmM16Config | None:
        """The next smaller division with the same results; None if there is none."""
        return smaller_early_product(self, self.early, least_k=GROUP)

    def span(self, *, grouped: bool, halves: int) -> int:
        """Channels of a span: a sum of FP8; of others a tile's, since scales or int32 sums make each a sum of its own."""
        return self.block_k if grouped or halves == 2 else CHANNELS_OF_ONE_SUM

    def tiles(self, k: int, span: int) -> int:
        """Tiles of ``k`` channels, each of which has parts of two spans of ``span`` channels."""
        return -(-k // (2 * span)) * (span // self.block_k)

    def shared_bytes(self, limits: DeviceLimits, k: int, *, grouped: bool, halves: int) -> int:
        """The most shared memory of a program, for ``k`` channels."""
        tile_bytes = 2 * (MAX_SCALED_GEMM_M16_ROWS + self.block_n) * self.block_k
        tiles = self.tiles(k, self.span(grouped=grouped, halves=halves))
        if self.early >= tiles:
            return tile_bytes * tiles
        # Of the early tiles, the last one is still read when the loop begins.
        return max(tile_bytes * self.early, tile_bytes + limits.loop_bytes(tile_bytes, self.num_stages))


@triton.jit
def _weight_row(row: tl.tensor, first: tl.tensor, N: tl.constexpr, BLOCK_N: tl.constexpr) -> tl.tensor:
    """The weight row of each row of a program, whose output columns begin at ``first``: gates come before their partners."""
    return row // BLOCK_N * N + tl.minimum(first + row % BLOCK_N, N - 1)


@triton.jit
def _factor(
    x_scale: tl.tensor,
    token: tl.tensor,
    num_rows: tl.tensor,
    weight_scale: tl.tensor,
    weight_row: tl.tensor,
    group: tl.tensor,
    GROUPS: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
) -> tl.tensor:
    """The scales of a group: of each weight row and token. There may be one group more than channels have."""
    known = group < GROUPS
    by_token = tl.load(x_scale + group * num_rows + token, mask=known & (token < num_rows), other=0.0)
    return tl.load(weight_scale + weight_row // SCALE_ROWS * GROUPS + group, mask=known, other=0.0) * by_token


@triton.jit
def _begin(index: tl.tensor, TILES: tl.constexpr, SPAN: tl.constexpr, BLOCK_K: tl.constexpr) -> tl.tensor:
    """The first channel of a tile in the first of its spans, of which each has TILES tiles."""
    return index // TILES * 2 * SPAN + index % TILES * BLOCK_K


@triton.jit
def _load_tile(
    tile_start: tl.tensor, begin: tl.tensor, row_channel: tl.tensor, K: tl.constexpr, WHOLE: tl.constexpr
) -> tl.tensor:
    """The weight's tile whose first channel is ``begin``. Without WHOLE, some of its channels may be none of K."""
    if WHOLE:
        return tl.load(tile_start + begin)
    else:
        return tl.load(tile_start + begin, mask=row_channel + begin < K, other=0.0)


@triton.jit
def _own_parts(product: tl.tensor, ROWS: tl.constexpr, BLOCK_M: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Of [2 ROWS, 2 BLOCK_M] products of each part with each, those of a part with itself: [ROWS / 8, 8, BLOCK_M], twice.

    A thread has the rows r and r + 8 of what an instruction multiplies, so nothing moves between threads.
    """
    parts = tl.permute(tl.reshape(product, (ROWS // 8, 2, 8, 2, BLOCK_M)), (0, 2, 4, 1, 3))
    with_first, with_second = tl.split(parts)
    first, _other = tl.split(with_first)
    _other, second = tl.split(with_second)
    return first, second


@triton.jit
def _add_spans(
    acc: tl.tensor,
    product: tl.tensor,
    group: tl.tensor,
    x_scale: tl.tensor,
    token: tl.tensor,
    num_rows: tl.tensor,
    weight_scale: tl.tensor,
    weight_row: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    GROUPS: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    GROUPED: tl.constexpr,
) -> tl.tensor:
    """``acc`` and the products of two spans, one after the other. Where channels have scales, ``group`` is the first span's."""
    first, second = _own_parts(product.to(tl.float32), ROWS, BLOCK_M)
    if GROUPED:
        factor = _factor(x_scale, token, num_rows, weight_scale, weight_row, group, GROUPS, SCALE_ROWS)
        acc = tl.fma(first, factor, acc)
        factor = _factor(x_scale, token, num_rows, weight_scale, weight_row, group + 1, GROUPS, SCALE_ROWS)
        return tl.fma(second, factor, acc)
    else:
        return acc + first + second


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
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPAN: tl.constexpr,
    EARLY: tl.constexpr,
    AHEAD: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    NEXT: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """With SWIGLU the weight is [2 N, K]: gates first. SPAN is the number of channels of a span, which some tiles make up.

    x has HALVES rows a token, ``num_rows`` are the tokens.
    """
    start_next(NEXT, OVERLAP)
    BLOCK_N: tl.constexpr = ROWS // 2 if SWIGLU else ROWS
    # Sums of products of eight-bit integers, of less than 132,000 channels, do not overflow.
    INTEGERS: tl.constexpr = HALVES == 2 and not GROUPED
    tl.static_assert(BLOCK_K == GROUP if GROUPED else SPAN % BLOCK_K == 0, "sums are of whole tiles")
    GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
    TILES: tl.constexpr = SPAN // BLOCK_K  # of two spans
    ALL_TILES: tl.constexpr = (K + 2 * SPAN - 1) // (2 * SPAN) * TILES
    WHOLE: tl.constexpr = K % (2 * SPAN) == 0
    first = tl.program_id(0) * BLOCK_N
    # Of every 16 rows of a tile, 8 are weight rows in the first span of channels, and 8 the same rows in the second.
    tile_row = tl.arange(0, 2 * ROWS)[:, None]
    row_channel = tile_row // 8 % 2 * SPAN + tl.arange(0, BLOCK_K)[None, :]
    row = _weight_row(tile_row // 16 * 8 + tile_row % 8, first, N, BLOCK_N).to(tl.int64) * K
    tile_start = weight + row + row_channel
    m = tl.arange(0, 2 * BLOCK_M)[:, None]
    value_channel = m // BLOCK_M * SPAN + tl.arange(0, BLOCK_K)[None, :]
    value_start = x + m % BLOCK_M * K + value_channel
    seen = m % BLOCK_M // HALVES < num_rows
    tiles = no_tensors()
    for early in tl.static_range(EARLY):
        tiles += (_load_tile(tile_start, _begin(early, TILES, SPAN, BLOCK_K), row_channel, K, WHOLE),)
    if OVERLAP and AHEAD > 0:
        # The channels after the early ones, in the first tile that is not early.
        line = _begin(EARLY, TILES, SPAN, BLOCK_K) + tl.arange(0, AHEAD // 256)[None, :] * 128
        prefetch(weight + row + tl.minimum(tile_row // 8 % 2 * SPAN + line, K - 1))
    if not GROUPED:
        by_row = tl.load(weight_scale + _weight_row(tl.arange(0, ROWS), first, N, BLOCK_N) // SCALE_ROWS)[None, :]
    wait_for_previous(OVERLAP, NEXT)
    values = no_tensors()
    for early in tl.static_range(EARLY):
        begin = _begin(early, TILES, SPAN, BLOCK_K)
        values += (tl.load(value_start + begin, mask=seen & (value_channel + begin < K), other=0.0),)
    tokens = tl.arange(0, BLOCK_M // HALVES)[:, None]
    n = first + tl.arange(0, BLOCK_N)[None, :]
    mask = (tokens < num_rows) & (n < N)
    offset = tokens * N + n
    addends = load_addends(bias, residual, n, offset, mask, N, BIAS, SWIGLU, ADD)
    if not GROUPED:
        by_token = tl.load(x_scale + tokens, mask=tokens < num_rows, other=0.0)
    sum_row = tl.arange(0, ROWS // 8)[:, None, None] * 8 + tl.arange(0, 8)[None, :, None]
    sum_row = _weight_row(sum_row, first, N, BLOCK_N)
    token = tl.arange(0, BLOCK_M)[None, None, :] // HALVES
    PRODUCT: tl.constexpr = tl.int32 if HALVES == 2 else tl.float32
    product = tl.zeros([2 * ROWS, 2 * BLOCK_M], PRODUCT)
    acc = tl.zeros([ROWS // 8, 8, BLOCK_M], tl.float32)
    for early in tl.static_range(EARLY):
        product = tl.dot(tiles[early], tl.trans(values[early]), product, out_dtype=PRODUCT)
        if not INTEGERS and (early + 1) % TILES == 0:
            acc = _add_spans(
                acc, product, early // TILES * 2, x_scale, token, num_rows, weight_scale, sum_row,
                ROWS, BLOCK_M, GROUPS, SCALE_ROWS, GROUPED,
            )  # fmt: skip
            product = tl.zeros([2 * ROWS, 2 * BLOCK_M], PRODUCT)
    if EARLY < ALL_TILES:
        for index in tl.range(EARLY, ALL_TILES):
            begin = _begin(index, TILES, SPAN, BLOCK_K)
            value = tl.load(value_start + begin, mask=seen & (value_channel + begin < K), other=0.0)
            tile = _load_tile(tile_start, begin, row_channel, K, WHOLE)
            if GROUPED:
                acc = _add_spans(
                    acc, tl.dot(tile, tl.trans(value)), index * 2, x_scale, token, num_rows, weight_scale, sum_row,
                    ROWS, BLOCK_M, GROUPS, SCALE_ROWS, GROUPED,
                )  # fmt: skip
            else:
                product = tl.dot(tile, tl.trans(value), product, out_dtype=PRODUCT)
                if not INTEGERS:
                    if (index + 1) % TILES == 0:
                        acc = _add_spans(
                            acc, product, index, x_scale, token, num_rows, weight_scale, sum_row,
                            ROWS, BLOCK_M, GROUPS, SCALE_ROWS, GROUPED,
                        )  # fmt: skip
                        product = tl.zeros([2 * ROWS, 2 * BLOCK_M], PRODUCT)
    if INTEGERS:
        by_first, by_second = _own_parts(product, ROWS, BLOCK_M)
        sums = tl.reshape(by_first + by_second, (ROWS, BLOCK_M))
    else:
        sums = tl.reshape(acc, (ROWS, BLOCK_M))
    result = join_halves(tl.trans(sums), HALVES)
    if not GROUPED:
        result = result * by_token * by_row
    up = result
    if SWIGLU:
        result, up = tl.split(tl.permute(tl.reshape(result, (BLOCK_M // HALVES, 2, BLOCK_N)), (0, 2, 1)))
    result = finish(result, up, addends, out.dtype.element_ty, BIAS, SWIGLU, ADD)
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=mask)


def _fp8_config(rows: int, k: int) -> ScaledGemmM16Config:
    if rows > _MANY_ROWS:
        return ScaledGemmM16Config(64, 128, early=2, num_stages=4, ahead=512, starts_next=AT_ONCE.value)
    if rows > 4096:
        return ScaledGemmM16Config(32, 128, early=8, num_stages=4, ahead=512)
    return ScaledGemmM16Config(32, 256, early=4, num_stages=4 if k <= 4096 else 6, ahead=512)


def _integer_config(rows: int, k: int) -> ScaledGemmM16Config:
    if rows > _VOCABULARY:
        return ScaledGemmM16Config(128, 128, early=2, num_stages=3, ahead=512)
    if rows > _MANY_ROWS:
        return ScaledGemmM16Config(64, 128, early=4, num_stages=5, ahead=512)
    if rows > 4096:
        return ScaledGemmM16Config(64, 256, early=2, num_stages=3, ahead=512)
    if k <= 2048:
        return ScaledGemmM16Config(32, 256, early=2, num_stages=4, ahead=512)
    return ScaledGemmM16Config(32, 512, early=1, num_stages=3, ahead=512)


def _grouped_config(rows: int, k: int) -> ScaledGemmM16Config:
    if rows > _MANY_ROWS:
        return ScaledGemmM16Config(64, GROUP, early=4, num_stages=4, ahead=512)
    if k > _MANY_CHANNELS:
        return ScaledGemmM16Config(32, GROUP, early=4, num_stages=8)
    return ScaledGemmM16Config(32 if rows <= 2048 else 64, GROUP, early=4, num_stages=6, ahead=512)


def scaled_gemm_m16_config(rows: int, k: int, *, grouped: bool, halves: int) -> ScaledGemmM16Config:
    """A good division for ``rows`` weight rows of ``k`` channels; `benchmarks/quantization.py` compares others.

    Args:
        rows: weight rows.
        k: channels.
        grouped: whether channels have scales.
        halves: rows of x a token; two for integers.
    """
    config = _grouped_config if grouped else _integer_config if halves == 2 else _fp8_config
    return config(rows, k)


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
    limits: DeviceLimits = UNLIMITED,
) -> Tensor:
    """`scaled_gemm` of up to `MAX_SCALED_GEMM_M16_ROWS` rows; the same arguments, and the same bits."""
    num_rows, halves, k = x.shape
    weight_rows = weight.data.shape[0]
    n = weight_rows // 2 if swiglu else weight_rows
    config = config or fitting(
        scaled_gemm_m16_config(weight_rows, k, grouped=weight.grouped, halves=halves),
        lambda one: one.shared_bytes(limits, k, grouped=weight.grouped, halves=halves),
        limits,
    )
    span = config.span(grouped=weight.grouped, halves=halves)
    out = torch.empty((num_rows, n), dtype=dtype, device=x.device)
    _scaled_gemm_m16_kernel[(triton.cdiv(n, config.block_n // 2 if swiglu else config.block_n),)](
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
        ROWS=config.block_n,
        BLOCK_K=config.block_k,
        SPAN=span,
        EARLY=min(config.early, config.tiles(k, span)),
        AHEAD=config.ahead,
        BIAS=bias is not None,
        SWIGLU=swiglu,
        ADD=residual is not None,
        NEXT=config.starts_next,
        OVERLAP=overlap,
        num_warps=4,
        num_stages=config.num_stages,
        **launch_options(overlap),
    )
    return out
