"""The end of a linear layer's kernel: bias, SwiGLU's activation and the addition to the residual stream.

Device functions for a tile of float32 sums. `finish` is for kernels that load bias and residual early, to hide the latency
behind the weights'; `load_and_finish` is for the others.

Not here: `gemm_split_k.py`, whose addresses are computed in another order; sharing this code would change its binary.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def swiglu(gate: tl.tensor, up: tl.tensor) -> tl.tensor:
    """``silu(gate) * up``, in float32."""
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def finish(
    acc: tl.tensor,
    up: tl.tensor,
    shift: tl.tensor,
    up_shift: tl.tensor,
    before: tl.tensor,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
) -> tl.tensor:
    """The layer's result, in float32, from its sums and from operands that are loaded already.

    Args:
        acc: the sums; with SWIGLU, the gates'.
        up: with SWIGLU, the other half's sums.
        shift: with BIAS, the bias of ``acc``.
        up_shift: with BIAS and SWIGLU, the bias of ``up``.
        before: with ADD, the residual.
        BIAS: whether there is a bias.
        SWIGLU: whether the result is ``silu(gate) * up``.
        ADD: whether the residual is added.
    """
    if BIAS:
        acc += shift
        if SWIGLU:
            up += up_shift
    if SWIGLU:
        acc = swiglu(acc, up)
    if ADD:
        acc += before
    return acc


@triton.jit
def _load_row(source: tl.tensor, n: tl.tensor, N: tl.constexpr) -> tl.tensor:
    """[1, BLOCK_N] float32."""
    row = tl.load(source + n, mask=n < N, other=0.0).to(tl.float32)
    if len(n.shape) == 1:
        row = row[None, :]
    return row


@triton.jit
def load_and_finish(
    acc: tl.tensor,
    up: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    n: tl.tensor,
    offset: tl.tensor,
    mask: tl.tensor,
    N: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
) -> tl.tensor:
    """`finish` for a tile [M, BLOCK_N] whose bias and residual are still in memory.

    Args:
        acc: the sums; with SWIGLU, the gates'.
        up: with SWIGLU, the other half's sums.
        bias: [N], with SWIGLU [2 N].
        residual: [M, N]; without ADD, None.
        n: [BLOCK_N] or [1, BLOCK_N], the tile's columns.
        offset: [M, BLOCK_N], the tile's offsets in the residual; without ADD, None.
        mask: [M, BLOCK_N], which of them exist; without ADD, None.
        N: output columns.
        BIAS: whether there is a bias.
        SWIGLU: whether the result is ``silu(gate) * up``.
        ADD: whether the residual is added.
    """
    if BIAS:
        acc += _load_row(bias, n, N)
        if SWIGLU:
            up += _load_row(bias + N, n, N)
    if SWIGLU:
        acc = swiglu(acc, up)
    if ADD:
        acc += tl.load(residual + offset, mask=mask, other=0.0).to(tl.float32)
    return acc
