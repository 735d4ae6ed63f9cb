"""SwiGLU's activation (Shazeer 2020): ``silu(gate) * up`` from one merged projection."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.overlap import launch_options, wait_for_previous

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


def silu_mul(gate_up: Tensor, *, overlap: bool = False) -> Tensor:
    """[T, 2 N] -> [T, N], computed in float32."""
    rows, n = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, n), dtype=gate_up.dtype, device=gate_up.device)
    block = min(_BLOCK, triton.next_power_of_2(n))
    _silu_mul_kernel[(rows, triton.cdiv(n, block))](
        gate_up, out, gate_up.stride(0), N=n, BLOCK=block, OVERLAP=overlap, num_warps=4, **launch_options(overlap)
    )
    return out
