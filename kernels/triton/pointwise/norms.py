"""RMSNorm, alone, fused with the residual addition before or after it, and in pairs; and LayerNorm.

One program a row, one pass over memory. Sums are trees (`sums.py`), so that every kernel that normalises a row gets the
same bits. Not here: rows wider than 65,536 elements, which one program could not hold in
registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.overlap import launch_options, wait_for_previous
from draftline.kernels.triton.rows import empty_rows
from draftline.kernels.triton.sums import square, tree_sum


@triton.jit
def _sum(value: tl.tensor) -> tl.tensor:
    """The sum of [BLOCK] elements."""
    return tl.sum(tree_sum(value[None, :]), axis=0)


@triton.jit
def inverse_rms(total: tl.tensor, eps: tl.tensor, N: tl.constexpr) -> tl.tensor:
    """What a row of N elements is multiplied by, from the sum of its squares."""
    return tl.rsqrt(total / N + eps)


@triton.jit
def normalized(value: tl.tensor, inverse: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """RMSNorm of float32 values, not rounded."""
    return value * inverse * scale


@triton.jit
def _rms_norm_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    new_residual: tl.tensor,
    x_stride: int,
    eps: float,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    # The weight depends neither on the row nor on earlier kernels.
    scale = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32)
    wait_for_previous(OVERLAP)
    value = tl.load(x + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + row * N + cols, mask=mask, other=0.0).to(tl.float32)
        # The norm reads the sum as the next layer will: rounded to the residual's type.
        stored = value.to(new_residual.dtype.element_ty)
        tl.store(new_residual + row * N + cols, stored, mask=mask)
        value = stored.to(tl.float32)
    inverse = inverse_rms(_sum(square(value)), eps, N)
    tl.store(out + row * N + cols, normalized(value, inverse, scale).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _rms_norm_add_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    eps: float,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    scale = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32)
    wait_for_previous(OVERLAP)
    value = tl.load(x + row * N + cols, mask=mask, other=0.0).to(tl.float32)
    before = tl.load(residual + row * N + cols, mask=mask, other=0.0).to(tl.float32)
    inverse = inverse_rms(_sum(square(value)), eps, N)
    # The addend is rounded, as a separate norm would round it.
    normed = normalized(value, inverse, scale).to(x.dtype.element_ty).to(tl.float32)
    tl.store(out + row * N + cols, (before + normed).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _joined_norms_kernel(
    table: tl.tensor,
    token_ids: tl.tensor,
    table_norm: tl.tensor,
    hidden: tl.tensor,
    hidden_norm: tl.tensor,
    out: tl.tensor,
    hidden_out: tl.tensor,
    eps: float,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    half = tl.program_id(1)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    if half == 0:
        scale = tl.load(table_norm + cols, mask=mask, other=0.0).to(tl.float32)
        wait_for_previous(OVERLAP)
        value = tl.load(table + tl.load(token_ids + row) * N + cols, mask=mask, other=0.0).to(tl.float32)
    else:
        scale = tl.load(hidden_norm + cols, mask=mask, other=0.0).to(tl.float32)
        wait_for_previous(OVERLAP)
        value = tl.load(hidden + row * N + cols, mask=mask, other=0.0).to(tl.float32)
    inverse = inverse_rms(_sum(square(value)), eps, N)
    normed = normalized(value, inverse, scale).to(out.dtype.element_ty)
    tl.store(out + (2 * row + half) * N + cols, normed, mask=mask)
    if half == 1:
        tl.store(hidden_out + row * N + cols, normed, mask=mask)


@triton.jit
def _layer_norm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    eps: float,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    # Weight and bias depend neither on the row nor on earlier kernels.
    scale = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32)
    shift = tl.load(bias + cols, mask=mask, other=0.0).to(tl.float32)
    wait_for_previous(OVERLAP)
    value = tl.load(x + row * N + cols, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, value - _sum(value) / N, 0.0)
    inverse = tl.rsqrt(_sum(square(centred)) / N + eps)
    tl.store(out + row * N + cols, (centred * inverse * scale + shift).to(out.dtype.element_ty), mask=mask)


def num_warps(block: int) -> int:
    """Up to 32 elements a thread: a sum within a thread costs less than one across warps."""
    return min(max(block // 1024, 1), 16)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, overlap: bool = False) -> Tensor:
    """RMSNorm over the last axis of [..., N], in float32. The rows of ``x`` must be evenly spaced."""
    n = x.shape[-1]
    rows = x.reshape(-1, n)
    out = empty_rows(rows.shape[0], n, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(n)
    _rms_norm_kernel[(rows.shape[0],)](
        rows,
        rows,
        weight,
        out,
        out,
        rows.stride(0),
        eps,
        N=n,
        BLOCK=block,
        ADD=False,
        OVERLAP=overlap,
        num_warps=num_warps(block),
        **launch_options(overlap),
    )
    return out.view(x.shape)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, overlap: bool = False
) -> tuple[Tensor, Tensor]:
    """``residual + x`` and its RMSNorm: (normed, new residual), both [T, N]; ``residual`` must be contiguous."""
    rows, n = x.shape
    out = empty_rows(rows, n, dtype=residual.dtype, device=residual.device)
    new_residual = torch.empty_like(residual)
    block = triton.next_power_of_2(n)
    _rms_norm_kernel[(rows,)](
        x,
        residual,
        weight,
        out,
        new_residual,
        x.stride(0),
        eps,
        N=n,
        BLOCK=block,
        ADD=True,
        OVERLAP=overlap,
        num_warps=num_warps(block),
        **launch_options(overlap),
    )
    return out, new_residual


def rms_norm_add(x: Tensor, weight: Tensor, eps: float, residual: Tensor, *, overlap: bool = False) -> Tensor:
    """``residual`` plus the RMSNorm of ``x``, all [T, N] and contiguous."""
    rows, n = x.shape
    out = torch.empty_like(residual)
    block = triton.next_power_of_2(n)
    _rms_norm_add_kernel[(rows,)](
        x,
        weight,
        residual,
        out,
        eps,
        N=n,
        BLOCK=block,
        OVERLAP=overlap,
        num_warps=num_warps(block),
        **launch_options(overlap),
    )
    return out


def joined_norms(
    table: Tensor,
    token_ids: Tensor,
    table_norm: Tensor,
    hidden: Tensor,
    hidden_norm: Tensor,
    eps: float,
    *,
    overlap: bool = False,
) -> tuple[Tensor, Tensor]:
    """``Ops.joined_norms`` by one kernel, with a program for each of the two norms of a row."""
    rows, n = hidden.shape
    out = empty_rows(rows, 2 * n, dtype=hidden.dtype, device=hidden.device)
    hidden_out = torch.empty_like(hidden)
    block = triton.next_power_of_2(n)
    _joined_norms_kernel[(rows, 2)](
        table,
        token_ids,
        table_norm,
        hidden,
        hidden_norm,
        out,
        hidden_out,
        eps,
        N=n,
        BLOCK=block,
        OVERLAP=overlap,
        num_warps=num_warps(block),
        **launch_options(overlap),
    )
    return out, hidden_out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *, overlap: bool = False) -> Tensor:
    """LayerNorm over the last axis of a contiguous [T, N], in float32."""
    rows, n = x.shape
    out = empty_rows(rows, n, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(n)
    _layer_norm_kernel[(rows,)](
        x,
        weight,
        bias,
        out,
        eps,
        N=n,
        BLOCK=block,
        OVERLAP=overlap,
        num_warps=num_warps(block),
        **launch_options(overlap),
    )
    return out
