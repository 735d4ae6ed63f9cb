"""Eight-bit linear layers, on the matrix units: [M, K] times [N, K] transposed.

Channels are summed in groups, each from zero, which are added to float32 sums: 128 channels where they have scales, and in FP8
512, because the units keep only some 14 bits of longer sums. Integers with a scale a row are exact in int32. The groups'
order is the same for every tile and number of rows, so a token's result does not depend on the others.

The two halves of an integer activation are rows of x like any other; their sums are joined at the end. The hardware copies
tiles where it can (tensor descriptors; fast from compute capability 9.0 on). SwiGLU's activation and the addition to the
residual stream are part of the launch.

Not here: up to 16 rows (`scaled_gemm_m16.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from draftline.kernels.scaled import GROUP, ScaledWeight
from draftline.kernels.triton.device import UNLIMITED, DeviceLimits, fitting
from draftline.kernels.triton.linear.eight_bit import CHANNELS_OF_ONE_SUM, join_halves
from draftline.kernels.triton.linear.epilogue import finish, load_addends
from draftline.kernels.triton.linear.smaller import smaller_product
from draftline.kernels.triton.linear.tiles import place_of_tile
from draftline.kernels.triton.overlap import launch_options, prefetch, wait_for_previous
from draftline.kernels.triton.rows import empty_rows, rows_with_room


@dataclass(frozen=True, slots=True)
class ScaledGemmConfig:
    """How one product is divided.

    Attributes:
        block_m: rows of x a program; a half is a row.
        block_n: output columns a program.
        num_warps: warps a program.
        num_stages: depth of the pipeline that loads both tiles.
        block_k: channels an iteration: a group where channels have scales; of other FP8, a part of one sum.
        ahead: where launches overlap, channels of each weight row to prefetch before the wait for the previous kernel.
        tiles_together: row tiles whose programs run next to each other, so that they share tiles in the L2 cache.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    block_k: int = GROUP
    ahead: int = 0
    tiles_together: int = 8

    def smaller(self) -> ScaledGemmConfig | None:
        """The next smaller division with the same results; None if there is none."""
        return smaller_product(self, least_k=GROUP)

    def shared_bytes(self, limits: DeviceLimits, *, swiglu: bool) -> int:
        """Shared memory of a program."""
        rows = self.block_m + (2 if swiglu else 1) * self.block_n
        return limits.loop_bytes(rows * self.block_k, self.num_stages)


@triton.jit(do_not_specialize=["num_rows"])
def _scaled_gemm_kernel(
    x: tl.tensor,
    x_scale: tl.tensor,
    weight: tl.tensor,
    weight_start: tl.tensor,
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
    ONE_SUM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    AHEAD: tl.constexpr,
    TILES_TOGETHER: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """With SwiGLU the weight is [2 N, K], gates first, and a tile of it has gates and their partners.

    x has HALVES rows a token, ``num_rows`` are the tokens. ONE_SUM is `CHANNELS_OF_ONE_SUM`.
    """
    TOKENS: tl.constexpr = BLOCK_M // HALVES
    WIDTH: tl.constexpr = 2 * BLOCK_N if SWIGLU else BLOCK_N
    # Sums of products of eight-bit integers, of less than 132,000 channels, do not overflow.
    INTEGERS: tl.constexpr = HALVES == 2 and not GROUPED
    PRODUCT: tl.constexpr = tl.int32 if HALVES == 2 else tl.float32
    tl.static_assert(BLOCK_K == GROUP if GROUPED else INTEGERS or ONE_SUM % BLOCK_K == 0, "sums are of whole tiles")
    GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
    first_m, first_n = place_of_tile(tl.program_id(0), num_rows, N, TOKENS, BLOCK_N, TILES_TOGETHER)
    column = tl.arange(0, WIDTH)
    column_mask = first_n + column % BLOCK_N < N
    weight_row = column // BLOCK_N * N + first_n + column % BLOCK_N
    token = first_m + tl.arange(0, BLOCK_M) // HALVES
    acc = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    product = tl.zeros([BLOCK_M, WIDTH], PRODUCT)
    if OVERLAP and AHEAD > 0:
        line = tl.minimum(tl.arange(0, AHEAD // 128)[None, :] * 128, K - 1)
        prefetch(weight_start + tl.where(column_mask, weight_row, 0).to(tl.int64)[:, None] * K + line)
    m = first_m + tl.arange(0, TOKENS)
    n = first_n + tl.arange(0, BLOCK_N)
    mask = (m < num_rows)[:, None] & (n < N)[None, :]
    # Offsets within the tile take half the registers of those from the beginning.
    start = first_m.to(tl.int64) * N
    offset = tl.arange(0, TOKENS)[:, None] * N + n[None, :]
    if OVERLAP and not GROUPED:
        scale_of_column = tl.load(weight_scale + weight_row // SCALE_ROWS, mask=column_mask, other=0.0)
    wait_for_previous(OVERLAP)
    if OVERLAP:
        addends = load_addends(bias, residual + start, n, offset, mask, N, BIAS, SWIGLU, ADD)
        if not GROUPED:
            scale_of_token = tl.load(x_scale + m, mask=m < num_rows, other=0.0)
    for k in tl.range(0, K, BLOCK_K):
        value = x.load([first_m * HALVES, k])
        tile = tl.trans(tl.reshape(weight.load([0, first_n, k]), (WIDTH, BLOCK_K)))
        if GROUPED:
            group = k // GROUP
            by_row = tl.load(x_scale + group * num_rows + token, mask=token < num_rows, other=0.0)
            by_column = tl.load(weight_scale + weight_row // SCALE_ROWS * GROUPS + group, mask=column_mask, other=0.0)
            acc = tl.fma(tl.dot(value, tile).to(tl.float32), by_row[:, None] * by_column[None, :], acc)
        else:
            product = tl.dot(value, tile, product, out_dtype=PRODUCT)
            if not INTEGERS:
                if (k + BLOCK_K) % ONE_SUM == 0:
                    acc += product
                    product = tl.zeros([BLOCK_M, WIDTH], PRODUCT)
    if INTEGERS:
        sums = join_halves(product, HALVES)
    else:
        if not GROUPED and K % ONE_SUM > 0:
            acc += product
        sums = join_halves(acc, HALVES)
    if not OVERLAP:
        addends = load_addends(bias, residual + start, n, offset, mask, N, BIAS, SWIGLU, ADD)
        if not GROUPED:
            scale_of_token = tl.load(x_scale + m, mask=m < num_rows, other=0.0)
            scale_of_column = tl.load(weight_scale + weight_row // SCALE_ROWS, mask=column_mask, other=0.0)
    if not GROUPED:
        sums = sums * scale_of_token[:, None] * scale_of_column[None, :]
    result, up = sums, sums
    if SWIGLU:
        result, up = tl.split(tl.permute(tl.reshape(sums, (TOKENS, 2, BLOCK_N)), (0, 2, 1)))
    result = finish(result, up, addends, out.dtype.element_ty, BIAS, SWIGLU, ADD)
    tl.store(out + start + offset, result.to(out.dtype.element_ty), mask=mask)


_NARROW = 4096
"""Output columns that make few programs."""

_VOCABULARY = 32768
"""Output columns that only an output projection has more of, where there is no SwiGLU."""


def _few_rows_config(n: int) -> ScaledGemmConfig:
    """Of up to 64 rows of x, with a scale a row, without SwiGLU."""
    if n <= _NARROW:
        return ScaledGemmConfig(64, 32, num_warps=4, num_stages=4, block_k=512)
    if n <= 8192:
        return ScaledGemmConfig(64, 32, num_warps=4, num_stages=4, block_k=256, ahead=256)
    return ScaledGemmConfig(64, 64, num_warps=8, num_stages=4, block_k=256, ahead=256)


def _fp8_config(rows: int, n: int, *, swiglu: bool) -> ScaledGemmConfig:
    if rows > 1024:
        # Here the power limit decides: large tiles, and many that share weights, move the fewest bytes.
        return ScaledGemmConfig(128, 128 if swiglu else 256, num_warps=8, num_stages=4, tiles_together=32)
    if rows > 256:
        # Two programs fit a multiprocessor: one multiplies while the other adds a sum, starts or ends.
        return ScaledGemmConfig(128, 64 if swiglu else 128, num_warps=4, num_stages=3)
    if swiglu or (rows > 64 and n > _NARROW):
        return ScaledGemmConfig(64, 64, num_warps=4, num_stages=4, ahead=256)
    if rows > 64:
        return ScaledGemmConfig(64, 128, num_warps=4, num_stages=4, block_k=256, ahead=256)
    return _few_rows_config(n)


def _integer_config(rows: int, n: int, *, swiglu: bool) -> ScaledGemmConfig:
    if swiglu:
        if rows > 64:
            return ScaledGemmConfig(128, 64, num_warps=8, num_stages=3)
        return ScaledGemmConfig(64, 128, num_warps=4, num_stages=4, ahead=256)
    if n > _VOCABULARY:
        if rows > 64:
            return ScaledGemmConfig(128, 128, num_warps=8, num_stages=3)
        return ScaledGemmConfig(64, 128, num_warps=4, num_stages=4, ahead=256)
    if rows > 256:
        return ScaledGemmConfig(128, 128, num_warps=4, num_stages=3)
    if rows > 64:
        return ScaledGemmConfig(64, 64, num_warps=4, num_stages=4 if n <= _NARROW else 3, block_k=256, ahead=256)
    return _few_rows_config(n)


def _grouped_config(rows: int, n: int, *, swiglu: bool) -> ScaledGemmConfig:
    if swiglu:
        if rows > 64:
            return ScaledGemmConfig(128, 64, num_warps=8, num_stages=3)
        return ScaledGemmConfig(64, 32, num_warps=4, num_stages=6, ahead=256)
    if rows > 256:
        return ScaledGemmConfig(128, 128, num_warps=8, num_stages=3)
    return ScaledGemmConfig(64, 32 if n <= _NARROW else 64, num_warps=4, num_stages=8)


def scaled_gemm_config(rows: int, n: int, *, swiglu: bool, grouped: bool, halves: int) -> ScaledGemmConfig:
    """A good division for these sizes; `benchmarks/quantization.py` compares others.

    Args:
        rows: rows of x; a half is a row.
        n: output columns.
        swiglu: whether the weight has gates too.
        grouped: whether channels have scales.
        halves: rows of x a token; two for integers.
    """
    config = _grouped_config if grouped else _integer_config if halves == 2 else _fp8_config
    return config(rows, n, swiglu=swiglu)


def scaled_gemm(
    x: Tensor,
    x_scale: Tensor,
    weight: ScaledWeight,
    bias: Tensor | None,
    *,
    dtype: torch.dtype,
    swiglu: bool = False,
    residual: Tensor | None = None,
    overlap: bool = False,
    config: ScaledGemmConfig | None = None,
    limits: DeviceLimits = UNLIMITED,
) -> Tensor:
    """``x @ weight.T + bias``: [M, K], [N, K], [N] -> [M, N], all contiguous, accumulated in float32 or int32.

    Args:
        x: [M, H, K], values of the weight's type, see `quantize_rows`; K is a multiple of 16.
        x_scale: their scales, [ceil(K / 128) or 1, M] float32.
        weight: [N, K]; with ``swiglu``, [2 N, K], gates first.
        bias: [weight rows], or None.
        dtype: of the result.
        swiglu: return ``silu(gate) * up``.
        residual: [M, N], added to the result, or None.
        overlap: start before the previous kernel has ended.
        config: how the product is divided, instead of `scaled_gemm_config`.
        limits: the device's.
    """
    num_rows, halves, k = x.shape
    weight_rows = weight.data.shape[0]
    parts = 2 if swiglu else 1
    n = weight_rows // parts
    config = config or fitting(
        scaled_gemm_config(num_rows * halves, n, swiglu=swiglu, grouped=weight.grouped, halves=halves),
        lambda one: one.shared_bytes(limits, swiglu=swiglu),
        limits,
    )
    out = empty_rows(num_rows, n, dtype=dtype, device=x.device)
    tiles = triton.cdiv(num_rows * halves, config.block_m) * triton.cdiv(n, config.block_n)
    _scaled_gemm_kernel[(tiles,)](
        TensorDescriptor(x, [rows_with_room(x.view(-1, k)), k], [k, 1], [config.block_m, config.block_k]),
        x_scale,
        TensorDescriptor(weight.data, [parts, n, k], [n * k, k, 1], [parts, config.block_n, config.block_k]),
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
        ONE_SUM=CHANNELS_OF_ONE_SUM,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        AHEAD=config.ahead,
        TILES_TOGETHER=config.tiles_together,
        BIAS=bias is not None,
        SWIGLU=swiglu,
        ADD=residual is not None,
        OVERLAP=overlap,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **launch_options(overlap),
    )
    return out
