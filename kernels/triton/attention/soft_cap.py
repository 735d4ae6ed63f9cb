"""Soft caps of logits, ``cap * tanh(x / cap)`` (Gemma 2, https://arxiv.org/abs/2408.00118).

Not here: soft caps of attention scores (`online_softmax.py`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.overlap import launch_options, wait_for_previous

_BLOCK = 2048


@triton.jit
def _soft_cap_kernel(
    x: tl.tensor, out: tl.tensor, cap: float, N: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr
) -> None:
    wait_for_previous(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * N + cols, mask=cols < N, other=0.0).to(tl.float32)
    # tanh(u) = 1 - 2 / (1 + exp(2 u)), which neither overflows to a NaN nor loses its limits.
    capped = cap * (1.0 - 2.0 / (1.0 + tl.exp(value * (2.0 / cap))))
    tl.store(out + row * N + cols, capped.to(out.dtype.element_ty), mask=cols < N)


def soft_cap(x: Tensor, cap: float, *, overlap: bool = False) -> Tensor:
    """``cap * tanh(x / cap)`` of a contiguous [S, N], computed in float32."""
    rows, n = x.shape
    out = torch.empty_like(x)
    block = min(_BLOCK, triton.next_power_of_2(n))
    _soft_cap_kernel[(rows, triton.cdiv(n, block))](
        x, out, cap, N=n, BLOCK=block, OVERLAP=overlap, num_warps=4, **launch_options(overlap)
    )
    return out
