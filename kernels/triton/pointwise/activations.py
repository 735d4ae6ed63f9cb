"""Activations: SwiGLU's and GeGLU's (Shazeer 2020, https://arxiv.org/abs/2002.05202), and GELU alone.

GELU is tanh's approximation (Hendrycks & Gimpel 2016, https://arxiv.org/abs/1606.08415):
``gelu(x) = x / 2 (1 + tanh(u))`` with ``u = sqrt(2 / pi) (x + 0.044715 x^3)``, which is ``x`` times the logistic function
of ``2 u``.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.overlap import launch_options, wait_for_previous
from draftline.kernels.triton.rows import empty_rows

_BLOCK = 1024


@triton.jit
def _silu_mul_kernel(
    gate_up: tl.tensor,
    out: tl.tensor,
    row_stride: int,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    wait_for_previous(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < N
    gate = tl.load(gate_up + row * row_stride + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + N + cols, mask=mask, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * N + cols, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _gelu_kernel(
    x: tl.tensor,
    out: tl.tensor,
    row_stride: int,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    GATED: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Where gated, a row of x is N gates and then the N values that they multiply."""
    wait_for_previous(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < N
    gate = tl.load(x + row * row_stride + cols, mask=mask, other=0.0).to(tl.float32)
    twice_u = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    value = gate / (1.0 + tl.exp(-twice_u))
    if GATED:
        value *= tl.load(x + row * row_stride + N + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * N + cols, value.to(out.dtype.element_ty), mask=mask)


def silu_mul(gate_up: Tensor, *, overlap: bool = False) -> Tensor:
    """[T, 2 N] -> [T, N], computed in float32."""
    rows, n = gate_up.shape[0], gate_up.shape[1] // 2
    out = empty_rows(rows, n, dtype=gate_up.dtype, device=gate_up.device)
    block = min(_BLOCK, triton.next_power_of_2(n))
    _silu_mul_kernel[(rows, triton.cdiv(n, block))](
        gate_up, out, gate_up.stride(0), N=n, BLOCK=block, OVERLAP=overlap, num_warps=4, **launch_options(overlap)
    )
    return out


def gelu(x: Tensor, *, overlap: bool = False) -> Tensor:
    """[T, N] -> [T, N], computed in float32."""
    return _launch_gelu(x, x.shape[1], gated=False, overlap=overlap)


def gelu_mul(gate_up: Tensor, *, overlap: bool = False) -> Tensor:
    """[T, 2 N] -> [T, N], ``gelu(first half) * second half``, computed in float32."""
    return _launch_gelu(gate_up, gate_up.shape[1] // 2, gated=True, overlap=overlap)


def _launch_gelu(x: Tensor, n: int, *, gated: bool, overlap: bool) -> Tensor:
    rows = x.shape[0]
    out = empty_rows(rows, n, dtype=x.dtype, device=x.device)
    block = min(_BLOCK, triton.next_power_of_2(n))
    _gelu_kernel[(rows, triton.cdiv(n, block))](
        x, out, x.stride(0), N=n, BLOCK=block, GATED=gated, OVERLAP=overlap, num_warps=4, **launch_options(overlap)
    )
    return out
