"""FP8 linear layers for one token, bound by reading the weight once.

Every thread streams 8-byte pieces of a few weight rows. A layer's neighbours are part of the launch, since they take less
time than a launch's wait: the input's norm and quantization, which each program repeats for its weight rows, SwiGLU's
activation and the addition to the residual stream.

The plain arithmetic units would take longer to widen and multiply than the weights take to arrive. So the matrix units
multiply, with no exchange of data: each thread passes its own pieces of two weight rows as a part of the left matrix, and
its own piece of the input as a part of the right one. The results of four neighbouring threads are then on the product's
diagonal.

Not here: integers, more tokens (`scaled_gemm_m16.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.scaled import GROUP, LARGEST, ScaledWeight
from draftline.kernels.triton.linear.eight_bit import round_to
from draftline.kernels.triton.linear.epilogue import swiglu
from draftline.kernels.triton.overlap import launch_options, wait_for_previous
from draftline.kernels.triton.sums import INTERPRETED

_VECTOR = tl.constexpr(8)


@dataclass(frozen=True, slots=True)
class ScaledGemvConfig:
    """How one product is divided.

    Attributes:
        pairs: pairs of weight rows that a program has at a time.
        turns: how many times a program takes as many pairs, for the same input.
        num_warps: warps a program; each thread takes 8 elements of a row at a time.
        ahead: pieces of 8 elements of each row that a thread loads before it uses the first.
    """

    pairs: int
    turns: int
    num_warps: int
    ahead: int


@triton.jit
def _multiply(
    acc: tl.tensor, second_acc: tl.tensor, first: tl.tensor, second: tl.tensor, x: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Add to the sums the products of two weight tiles [PAIRS, BLOCK_K], FP8, and x [1, BLOCK_K], float16.

    In a warp's 16 x 8 product, thread 4 i + j holds rows i and 8 + i of the left matrix (the first and the second weight
    row) and column i of the right one, at the same four channels. Element (i, i) is the sum over threads 4 i to 4 i + 3.
    ``acc`` has each thread's elements of two such products, for even and odd words. So every thread must hold 8
    neighbouring channels, and the threads of a warp the same weight row, as `_columns` arranges. A test reads this off
    the compiled kernel.
    """
    x = tl.broadcast_to(x, first.shape)
    if INTERPRETED:
        wide = x.to(tl.float32)
        return acc + first.to(tl.float32) * wide, second_acc + second.to(tl.float32) * wide
    acc = tl.inline_asm_elementwise(
        """{
        .reg .b16 low, high;
        .reg .b32 a0, a1, a2, a3;
        mov.b32 {low, high}, $16;
        cvt.rn.f16x2.e4m3x2 a0, low;
        cvt.rn.f16x2.e4m3x2 a2, high;
        mov.b32 {low, high}, $18;
        cvt.rn.f16x2.e4m3x2 a1, low;
        cvt.rn.f16x2.e4m3x2 a3, high;
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
            {$0, $1, $2, $3}, {a0, a1, a2, a3}, {$20, $21}, {$8, $9, $10, $11};
        mov.b32 {low, high}, $17;
        cvt.rn.f16x2.e4m3x2 a0, low;
        cvt.rn.f16x2.e4m3x2 a2, high;
        mov.b32 {low, high}, $19;
        cvt.rn.f16x2.e4m3x2 a1, low;
        cvt.rn.f16x2.e4m3x2 a3, high;
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
            {$4, $5, $6, $7}, {a0, a1, a2, a3}, {$22, $23}, {$12, $13, $14, $15};
        }""",
        "=&f,=&f,=&f,=&f,=&f,=&f,=&f,=&f,f,f,f,f,f,f,f,f,r,r,r,r,r,r,r,r",
        [acc, first, second, x],
        dtype=tl.float32,
        is_pure=True,
        pack=8,
    )
    return acc, second_acc


@triton.jit
def _sums(acc: tl.tensor, second_acc: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The sums of `_multiply` for both weight rows, [PAIRS, BLOCK_K / 8] each: the diagonal's, and zeros elsewhere."""
    PAIRS: tl.constexpr = acc.shape[0]
    CHUNKS: tl.constexpr = acc.shape[1] // _VECTOR
    if INTERPRETED:
        first = tl.sum(tl.reshape(acc, (PAIRS, CHUNKS, _VECTOR)), axis=2)
        return first, tl.sum(tl.reshape(second_acc, (PAIRS, CHUNKS, _VECTOR)), axis=2)
    found = tl.inline_asm_elementwise(
        """{
        .reg .u32 lane, column;
        .reg .pred even, odd;
        .reg .f32 a, b;
        mov.u32 lane, %laneid;
        and.b32 column, lane, 3;
        shl.b32 column, column, 1;
        shr.u32 lane, lane, 2;
        setp.eq.u32 even, lane, column;
        add.u32 column, column, 1;
        setp.eq.u32 odd, lane, column;
        add.f32 a, $8, $12;
        add.f32 b, $9, $13;
        selp.f32 b, b, 0f00000000, odd;
        selp.f32 $0, a, b, even;
        add.f32 a, $10, $14;
        add.f32 b, $11, $15;
        selp.f32 b, b, 0f00000000, odd;
        selp.f32 $1, a, b, even;
        mov.f32 $2, $0; mov.f32 $3, $0; mov.f32 $4, $0; mov.f32 $5, $0; mov.f32 $6, $0; mov.f32 $7, $0;
        }""",
        "=&f,=&f,=&f,=&f,=&f,=&f,=&f,=&f,f,f,f,f,f,f,f,f",
        [acc],
        dtype=tl.float32,
        is_pure=True,
        pack=8,
    )
    found = tl.reshape(found, (PAIRS, CHUNKS, _VECTOR))
    element = tl.arange(0, _VECTOR)[None, None, :]
    # Adding -0.0 changes nothing, so the compiler leaves it out.
    return tl.sum(tl.where(element == 0, found, -0.0), axis=2), tl.sum(tl.where(element == 1, found, -0.0), axis=2)


@triton.jit
def _none() -> tl.tensor:
    """An empty tuple of tensors, to append to."""
    return ()


@triton.jit
def _columns(BLOCK_K: tl.constexpr) -> tl.tensor:
    """[1, BLOCK_K] channels: the compiler gives each thread 8 neighbouring ones, and each row to whole warps."""
    return tl.max_contiguous(tl.arange(0, BLOCK_K), 8)[None, :]


@triton.jit
def _piece(
    weight: tl.tensor,
    first_row: tl.tensor,
    piece: tl.constexpr,
    rows: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STEPS: tl.constexpr,
    OUTPUTS: tl.constexpr,
) -> tl.tensor:
    """[PAIRS, BLOCK_K]: one of a program's weight pieces, in the order of use: the first turn's, then the next's."""
    row = first_row + piece // STEPS * OUTPUTS
    col = piece % STEPS * BLOCK_K + _columns(BLOCK_K)
    return tl.load(weight + row.to(tl.int64)[:, None] * K + col, mask=(row < rows)[:, None] & (col < K), other=0.0)


@triton.jit
def _ends(source: tl.tensor, row: tl.tensor, rows: tl.constexpr, TOGETHER: tl.constexpr) -> tl.tensor:
    """[PAIRS] float32: a factor or an addend of each result; TOGETHER rows share one."""
    return tl.load(source + row // TOGETHER, mask=row < rows, other=0.0).to(tl.float32)


@triton.jit
def _of_groups(value: tl.tensor, BLOCK_K: tl.constexpr, GROUP: tl.constexpr) -> tl.tensor:
    """[1, BLOCK_K]: the largest magnitude of the group of GROUP that each channel is in."""
    largest = tl.max(tl.reshape(tl.abs(value), (BLOCK_K // GROUP, GROUP)), axis=1)
    return tl.reshape(tl.broadcast_to(largest[:, None], (BLOCK_K // GROUP, GROUP)), (1, BLOCK_K))


@triton.jit
def _weight_scale(
    scale: tl.tensor, row: tl.tensor, group: tl.tensor, mask: tl.tensor, ROWS: tl.constexpr, GROUPS: tl.constexpr
) -> tl.tensor:
    """The scales [PAIRS, CHUNKS] of a weight with one for ROWS rows and each group of columns."""
    return tl.load(scale + (row // ROWS)[:, None] * GROUPS + group, mask=mask, other=0.0)


@triton.jit
def _scaled_gemv_kernel(
    x: tl.tensor,
    norm: tl.tensor,
    weight: tl.tensor,
    weight_scale: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    eps: float,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    LARGEST: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    GROUPED: tl.constexpr,
    PAIRS: tl.constexpr,
    TURNS: tl.constexpr,
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
    GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    OUTPUTS: tl.constexpr = PAIRS if SWIGLU else 2 * PAIRS
    # A pair is a gate and its up row, or two outputs.
    first_start = tl.program_id(0) * (TURNS * OUTPUTS) + tl.arange(0, PAIRS)
    second_start = first_start + (N if SWIGLU else PAIRS)
    rows: tl.constexpr = 2 * N if SWIGLU else N
    col = _columns(BLOCK_K)
    chunk = tl.arange(0, CHUNKS)[None, :] * _VECTOR
    firsts = _none()
    seconds = _none()
    for step in tl.static_range(0, min(AHEAD, TURNS * STEPS)):
        firsts += (_piece(weight, first_start, step, N, K, BLOCK_K, STEPS, OUTPUTS),)
        seconds += (_piece(weight, second_start, step, rows, K, BLOCK_K, STEPS, OUTPUTS),)
    # Operands of the epilogue are loaded here: the weights' loads hide their latency.
    gains = _none()
    shifts = _none()
    befores = _none()
    for turn in tl.static_range(0, TURNS):
        if not GROUPED:
            gains += (_ends(weight_scale, first_start + turn * OUTPUTS, N, SCALE_ROWS),)
            gains += (_ends(weight_scale, second_start + turn * OUTPUTS, rows, SCALE_ROWS),)
        if BIAS:
            shifts += (_ends(bias, first_start + turn * OUTPUTS, N, 1),)
            shifts += (_ends(bias, second_start + turn * OUTPUTS, rows, 1),)
    wait_for_previous(OVERLAP)
    if ADD:
        for turn in tl.static_range(0, TURNS):
            befores += (_ends(residual, first_start + turn * OUTPUTS, N, 1),)
            befores += (_ends(residual, second_start + turn * OUTPUTS, rows, 1),)
    values = _none()
    square = tl.zeros([1, BLOCK_K], tl.float32)
    peak = tl.zeros([1, BLOCK_K], tl.float32)
    for step in tl.static_range(0, STEPS):
        in_row = col < K - step * BLOCK_K
        value = tl.load(x + step * BLOCK_K + col, mask=in_row, other=0.0).to(tl.float32)
        if NORM:
            square += value * value
            value *= tl.load(norm + step * BLOCK_K + col, mask=in_row, other=0.0).to(tl.float32)
        peak = tl.maximum(peak, tl.abs(value))
        values += (value,)
    # Norm and scale need all channels before the first is rounded.
    factor = 1.0
    if NORM:
        factor = tl.rsqrt(tl.sum(tl.sum(square, axis=1), axis=0) / K + eps)
    scale = 1.0
    if not GROUPED:
        largest = tl.max(tl.max(peak, axis=1), axis=0) * factor
        # Of zeros alone, the scale is zero and any factor will do.
        inverse = factor * (LARGEST / tl.maximum(largest, 1.0e-30))
        scale = largest / LARGEST
    rounded = _none()
    scales = _none()
    for step in tl.static_range(0, STEPS):
        value = values[step]
        if GROUPED:
            value *= factor
            largest = _of_groups(value, BLOCK_K, GROUP)
            inverse = LARGEST / tl.maximum(largest, 1.0e-30)
            # All channels of a chunk share a scale.
            scales += (tl.max(tl.reshape(largest / LARGEST, (1, CHUNKS, _VECTOR)), axis=2),)
        rounded += (round_to(value * inverse, weight.dtype.element_ty).to(tl.float16),)

    for turn in tl.static_range(0, TURNS):
        row = first_start + turn * OUTPUTS
        second_row = second_start + turn * OUTPUTS
        mask = row < N
        second_mask = second_row < rows
        acc = tl.zeros([PAIRS, BLOCK_K], tl.float32)
        second_acc = tl.zeros([PAIRS, BLOCK_K], tl.float32)
        sums = tl.zeros([PAIRS, CHUNKS], tl.float32)
        second_sums = tl.zeros([PAIRS, CHUNKS], tl.float32)
        for step in tl.static_range(0, STEPS):
            if turn * STEPS + step + AHEAD < TURNS * STEPS:
                firsts += (_piece(weight, first_start, turn * STEPS + step + AHEAD, N, K, BLOCK_K, STEPS, OUTPUTS),)
                seconds += (
                    _piece(weight, second_start, turn * STEPS + step + AHEAD, rows, K, BLOCK_K, STEPS, OUTPUTS),
                )
            acc, second_acc = _multiply(
                acc, second_acc, firsts[turn * STEPS + step], seconds[turn * STEPS + step], rounded[step]
            )
            if GROUPED:
                part, second_part = _sums(acc, second_acc)
                group = (step * BLOCK_K + chunk) // GROUP
                in_row = step * BLOCK_K + chunk < K
                part *= scales[step]
                part *= _weight_scale(weight_scale, row, group, mask[:, None] & in_row, SCALE_ROWS, GROUPS)
                second_part *= scales[step]
                second_part *= _weight_scale(
                    weight_scale, second_row, group, second_mask[:, None] & in_row, SCALE_ROWS, GROUPS
                )
                sums += part
                second_sums += second_part
                acc = tl.zeros([PAIRS, BLOCK_K], tl.float32)
                second_acc = acc
        if not GROUPED:
            sums, second_sums = _sums(acc, second_acc)
        result = tl.sum(sums, axis=1) * scale
        second_result = tl.sum(second_sums, axis=1) * scale
        if not GROUPED:
            result *= gains[2 * turn]
            second_result *= gains[2 * turn + 1]
        if BIAS:
            result += shifts[2 * turn]
            second_result += shifts[2 * turn + 1]
        if SWIGLU:
            result = swiglu(result, second_result)
        if ADD:
            result += befores[2 * turn]
            second_result += befores[2 * turn + 1]
        tl.store(out + row, result.to(out.dtype.element_ty), mask=mask)
        if not SWIGLU:
            tl.store(out + second_row, second_result.to(out.dtype.element_ty), mask=second_mask)


def scaled_gemv_config(n: int, k: int) -> ScaledGemvConfig:
    """A good division for ``n`` weight rows of ``k`` elements; `benchmarks/quantization.py` compares others."""
    num_warps = 4 if k >= 1024 else 2
    if n >= 4 * k:
        return ScaledGemvConfig(pairs=4, turns=2, num_warps=num_warps, ahead=4)
    if n == k:
        return ScaledGemvConfig(pairs=2, turns=2, num_warps=num_warps, ahead=4)
    return ScaledGemvConfig(pairs=4, turns=1, num_warps=num_warps, ahead=2 if n > k else 3)


def scaled_gemv(
    x: Tensor,
    weight: ScaledWeight,
    bias: Tensor | None,
    *,
    norm: tuple[Tensor, float] | None = None,
    swiglu: bool = False,
    residual: Tensor | None = None,
    overlap: bool = False,
    config: ScaledGemvConfig | None = None,
) -> Tensor:
    """``x @ weight.T + bias`` of one row, quantized: [1, K], [N, K], [N] -> [1, N], contiguous, accumulated in float32.

    Args:
        x: [1, K].
        weight: [N, K] FP8; with ``swiglu``, [2 N, K], gates first.
        bias: [weight rows], or None.
        norm: the [K] weights and the epsilon of an RMSNorm of x, or None.
        swiglu: return ``silu(gate) * up``.
        residual: [1, N], added to the result, or None.
        overlap: start before the previous kernel has ended.
        config: how the product is divided, instead of `scaled_gemv_config`.
    """
    rows, k = weight.data.shape
    n = rows // 2 if swiglu else rows
    config = config or scaled_gemv_config(rows, k)
    out = torch.empty((1, n), dtype=x.dtype, device=x.device)
    norm_weight, eps = norm if norm is not None else (x, 0.0)
    _scaled_gemv_kernel[(triton.cdiv(n, config.turns * config.pairs * (1 if swiglu else 2)),)](
        x,
        norm_weight,
        weight.data,
        weight.scale,
        bias if bias is not None else out,
        residual if residual is not None else out,
        out,
        eps,
        N=n,
        K=k,
        GROUP=GROUP,
        LARGEST=LARGEST[weight.data.dtype],
        SCALE_ROWS=weight.rows,
        GROUPED=weight.grouped,
        PAIRS=config.pairs,
        TURNS=config.turns,
        BLOCK_K=config.num_warps * 256,
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
