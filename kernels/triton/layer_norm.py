"""LayerNorm (Ba et al. 2016, https://arxiv.org/abs/1607.06450): one program a row, one pass over memory.

Not for rows wider than 65,536 elements, which one program could not hold in registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.norm import num_warps
from draftline.kernels.triton.overlap import launch_options, wait_for_previous


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
    centred = tl.where(mask, value - tl.sum(value, axis=0) / N, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, axis=0) / N + eps)
    tl.store(out + row * N + cols, (centred * inverse * scale + shift).to(out.dtype.element_ty), mask=mask)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *, overlap: bool = False) -> Tensor:
    """LayerNorm over the last axis of a contiguous [T, N], in float32."""
    rows, n = x.shape
    out = torch.empty_like(x)
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
