"""Linear layers for a few tokens, bound by reading the weight once: [M, K] times [N, K] transposed, M up to 16.

Two kernels. For one token, a matrix-vector product on the plain arithmetic units: every thread streams 16-byte pieces of
a few weight rows. For more, the matrix units: a program owns a few weight rows and each of its warps a share of K, so
that even a narrow layer has enough loads in flight; the warps' partial sums are joined at the end. A row's result does
not depend on the other rows of x.

Both can take over what stands before and after a layer, which saves launches where those cost more than the reading:
the residual addition and RMSNorm of the input, and SwiGLU's activation of the output.

Not here: more rows, where the vendor's matrix product wins, and quantized weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ROWS = 16
"""The most rows of x that the kernels take."""

_VECTOR = tl.constexpr(8)


@dataclass(frozen=True, slots=True)
class SkinnyConfig:
    """How one product is divided.

    Attributes:
        block_n: output columns (weight rows) a program.
        block_k: elements of K an iteration takes, of all warps together.
        num_warps: warps a program; each takes its share of ``block_k``.
        num_stages: depth of the pipeline that loads weights (matrix units only).
        overlap: start before the previous kernel has ended, and wait for it only after asking for the first weights
            (programmatic dependent launch; compute capability 9.0 on). Every kernel of the stream may have it or not.
    """

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    overlap: bool = False


@dataclass(frozen=True, slots=True)
class InputNorm:
    """RMSNorm of the input, after an addition to it.

    Attributes:
        residual: [M, K], added to x before the norm.
        weight: [K].
        eps: RMSNorm's epsilon.
    """

    residual: Tensor
    weight: Tensor
    eps: float


@triton.jit
def _silu(x: tl.tensor) -> tl.tensor:
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _weighted_sum(weight_tile: tl.tensor, x_tile: tl.tensor) -> tl.tensor:
    """[N, C, 8] times [1, C, 8], summed over the last axis, which one thread holds."""
    return tl.sum(weight_tile.to(tl.float32) * x_tile, axis=2)


@triton.jit
def _gemv_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    norm_weight: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    new_residual: tl.tensor,
    eps: float,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """One row of x. The weight is [N, K], or [2 N, K] with SwiGLU: gates first."""
    pid = tl.program_id(0)
    row = (pid * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None, None]
    chunk = tl.arange(0, BLOCK_K // _VECTOR)[None, :, None] * _VECTOR + tl.arange(0, _VECTOR)[None, None, :]
    weight_row = weight + row * K
    row_mask = row < N
    acc = tl.zeros([BLOCK_N, BLOCK_K // _VECTOR], tl.float32)
    acc_up = tl.zeros([BLOCK_N, BLOCK_K // _VECTOR], tl.float32)
    square = tl.zeros([1, BLOCK_K // _VECTOR], tl.float32)
    # Each iteration asks for the next weights before it uses its own. The first weights depend on nothing that still
    # runs: they are asked for before the wait for x.
    tile = tl.load(weight_row + chunk, mask=row_mask & (chunk < K), other=0.0)
    tile_up = tile
    if SWIGLU:
        tile_up = tl.load(weight_row + N * K + chunk, mask=row_mask & (chunk < K), other=0.0)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for start in tl.range(0, K, BLOCK_K):
        col = start + chunk
        col_mask = col < K
        following = col + BLOCK_K
        following_mask = row_mask & (following < K)
        next_tile = tl.load(weight_row + following, mask=following_mask, other=0.0)
        next_up = next_tile
        if SWIGLU:
            next_up = tl.load(weight_row + N * K + following, mask=following_mask, other=0.0)
        value = tl.load(x + col, mask=col_mask, other=0.0).to(tl.float32)
        if NORM:
            value += tl.load(residual + col, mask=col_mask, other=0.0).to(tl.float32)
            stored = value.to(new_residual.dtype.element_ty)
            if pid == 0:
                tl.store(new_residual + col, stored, mask=col_mask)
            value = stored.to(tl.float32)
            square += tl.sum(value * value, axis=2)
            value *= tl.load(norm_weight + col, mask=col_mask, other=0.0).to(tl.float32)
        acc += _weighted_sum(tile, value)
        if SWIGLU:
            acc_up += _weighted_sum(tile_up, value)
        tile = next_tile
        tile_up = next_up
    result = tl.sum(acc, axis=1)
    col_out = pid * BLOCK_N + tl.arange(0, BLOCK_N)
    out_mask = col_out < N
    inverse = 1.0
    if NORM:
        inverse = tl.rsqrt(tl.sum(tl.sum(square, axis=1), axis=0) / K + eps)
        result *= inverse
    if BIAS:
        result += tl.load(bias + col_out, mask=out_mask, other=0.0).to(tl.float32)
    if SWIGLU:
        result = _silu(result) * (tl.sum(acc_up, axis=1) * inverse)
    tl.store(out + col_out, result.to(out.dtype.element_ty), mask=out_mask)


@triton.jit(do_not_specialize=["num_rows"])
def _skinny_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    norm_weight: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    new_residual: tl.tensor,
    num_rows: int,
    eps: float,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Up to BLOCK_M rows of x, on the matrix units: a batch of SPLITS products, one a warp, each over its share of K."""
    SHARE: tl.constexpr = BLOCK_K // SPLITS
    pid = tl.program_id(0)
    n = pid * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    k = tl.arange(0, SPLITS)[:, None, None] * SHARE + tl.arange(0, SHARE)[None, None, :]
    row_mask = (m < num_rows)[None, :, None]
    n_mask = (n < N)[None, :, None]
    x_offset = m[None, :, None] * K + k
    weight_offset = n[None, :, None].to(tl.int64) * K + k
    acc = tl.zeros([SPLITS, BLOCK_M, BLOCK_N], tl.float32)
    acc_up = tl.zeros([SPLITS, BLOCK_M, BLOCK_N], tl.float32)
    square = tl.zeros([SPLITS, BLOCK_M], tl.float32)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for start in tl.range(0, K, BLOCK_K, num_stages=NUM_STAGES):
        k_mask = start + k < K
        tile = tl.load(weight + weight_offset + start, mask=n_mask & k_mask, other=0.0)
        value = tl.load(x + x_offset + start, mask=row_mask & k_mask, other=0.0)
        if NORM:
            total = value.to(tl.float32)
            total += tl.load(residual + x_offset + start, mask=row_mask & k_mask, other=0.0).to(tl.float32)
            stored = total.to(new_residual.dtype.element_ty)
            if pid == 0:
                tl.store(new_residual + x_offset + start, stored, mask=row_mask & k_mask)
            total = stored.to(tl.float32)
            square += tl.sum(total * total, axis=2)
            total *= tl.load(norm_weight + start + k, mask=k_mask, other=0.0).to(tl.float32)
            value = total.to(x.dtype.element_ty)
        acc = tl.dot(value, tl.permute(tile, (0, 2, 1)), acc, input_precision=PRECISION)
        if SWIGLU:
            tile_up = tl.load(weight + N * K + weight_offset + start, mask=n_mask & k_mask, other=0.0)
            acc_up = tl.dot(value, tl.permute(tile_up, (0, 2, 1)), acc_up, input_precision=PRECISION)
    result = tl.sum(acc, axis=0)
    up = tl.sum(acc_up, axis=0)
    if NORM:
        inverse = tl.rsqrt(tl.sum(square, axis=0) / K + eps)[:, None]
        result *= inverse
        up *= inverse
    if BIAS:
        result += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if SWIGLU:
        result = _silu(result) * up
    out_mask = (m < num_rows)[:, None] & (n < N)[None, :]
    tl.store(out + m[:, None] * N + n[None, :], result.to(out.dtype.element_ty), mask=out_mask)


def default_config(rows: int, n: int, k: int, *, streams: int) -> SkinnyConfig:
    """A division that suits most layers; `benchmarks/kernels.py` compares others.

    Args:
        rows: M.
        n: output columns.
        k: K.
        streams: how many tensors an iteration reads, the weight and x being two.
    """
    if rows == 1:
        return SkinnyConfig(
            block_n=1 if n * k <= 2**23 else 2, block_k=min(1024, triton.next_power_of_2(k)), num_warps=1, num_stages=1
        )
    # All streams are staged in shared memory: more of them leave room for less of each.
    return SkinnyConfig(block_n=16, block_k=512 if k >= 512 and streams == 2 else 256, num_warps=4, num_stages=4)


def _run(
    x: Tensor,
    weight: Tensor,
    n: int,
    bias: Tensor | None,
    norm: InputNorm | None,
    swiglu: bool,
    config: SkinnyConfig | None,
) -> tuple[Tensor, Tensor]:
    rows, k = x.shape
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"skinny_gemm: x has {rows} rows; it takes 1 to {MAX_ROWS}")
    streams = 2 + (norm is not None) + swiglu
    config = config or default_config(rows, n, k, streams=streams)
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    new_residual = torch.empty_like(x) if norm is not None else out
    arguments = (
        x,
        norm.residual if norm is not None else x,
        norm.weight if norm is not None else x,
        weight,
        bias if bias is not None else x,
        out,
        new_residual,
    )
    eps = norm.eps if norm is not None else 0.0
    grid = (triton.cdiv(n, config.block_n),)
    # The launch attribute does not exist before compute capability 9.0.
    options = {"launch_pdl": True} if config.overlap else {}
    if rows == 1:
        _gemv_kernel[grid](
            *arguments,
            eps,
            N=n,
            K=k,
            BLOCK_N=config.block_n,
            BLOCK_K=config.block_k,
            NORM=norm is not None,
            BIAS=bias is not None,
            SWIGLU=swiglu,
            OVERLAP=config.overlap,
            num_warps=config.num_warps,
            **options,
        )
    else:
        _skinny_kernel[grid](
            *arguments,
            rows,
            eps,
            N=n,
            K=k,
            BLOCK_M=16,
            BLOCK_N=config.block_n,
            BLOCK_K=config.block_k,
            SPLITS=config.num_warps,
            NUM_STAGES=config.num_stages,
            NORM=norm is not None,
            BIAS=bias is not None,
            SWIGLU=swiglu,
            OVERLAP=config.overlap,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            num_warps=config.num_warps,
            **options,
        )
    return out, new_residual


def skinny_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, config: SkinnyConfig | None = None
) -> Tensor:
    """``x @ weight.T + bias``: [M, K], [N, K], [N] -> [M, N], all contiguous, accumulated in float32.

    Raises:
        ValueError: M is 0 or more than `MAX_ROWS`.
    """
    return _run(x, weight, weight.shape[0], bias, None, False, config)[0]


def norm_linear(
    x: Tensor, norm: InputNorm, weight: Tensor, bias: Tensor | None = None, *, config: SkinnyConfig | None = None
) -> tuple[Tensor, Tensor]:
    """``rms_norm(residual + x) @ weight.T + bias`` and the new residual: [M, N] and [M, K]. See `skinny_linear`."""
    return _run(x, weight, weight.shape[0], bias, norm, False, config)


def norm_swiglu(
    x: Tensor, norm: InputNorm, gate_up: Tensor, *, config: SkinnyConfig | None = None
) -> tuple[Tensor, Tensor]:
    """``silu(gate) * up`` of ``rms_norm(residual + x) @ gate_up.T``, [2 N, K]: [M, N] and the new residual [M, K]."""
    return _run(x, gate_up, gate_up.shape[0] // 2, None, norm, True, config)
