"""The end of a linear layer's kernel: bias, SwiGLU's activation and the addition to the residual stream.

A layer's result is rounded, and rounded again when it has been added to the residual stream: so does a model that computes both one after
the other, and so does the vendor's library. Gates and their partners are rounded before the activation likewise. What is added comes after all
products of the sum, at every number of rows.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def swiglu(gate: tl.tensor, up: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """``silu(gate) * up`` of both rounded to ``dtype``, in float32."""
    gate = gate.to(dtype).to(tl.float32)
    up = up.to(dtype).to(tl.float32)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def added(acc: tl.tensor, value: tl.tensor) -> tl.tensor:
    """``acc + value``, in float32. The compiler would begin a sum of one product with a value that a plain + adds to it."""
    return tl.fma(acc, tl.full(acc.shape, 1.0, tl.float32), value.to(tl.float32))


@triton.jit
def added_to(residual: tl.tensor, acc: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """The layer's result, rounded to ``dtype``, plus the residual stream, in float32."""
    return added(acc.to(dtype).to(tl.float32), residual)


@triton.jit
def load_and_finish(
    acc: tl.tensor,
    up: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    n: tl.tensor,
    offset: tl.tensor,
    mask: tl.tensor,
    dtype: tl.constexpr,
    N: tl.tensor,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
) -> tl.tensor:
    """The layer's result, in float32, from its sums.

    Args:
        acc: float32 sums, of any shape; with SWIGLU, the gates'.
        up: with SWIGLU, the other half's sums.
        bias: [N], with SWIGLU [2 N].
        residual: [M, N].
        n: the columns of ``acc``, of a shape that broadcasts to it.
        offset: the offsets of ``acc`` in the residual.
        mask: which of them exist.
        dtype: of the layer's result.
        N: output columns.
        BIAS: whether there is a bias.
        SWIGLU: whether the result is ``silu(gate) * up``.
        ADD: whether the residual is added.
    """
    if BIAS:
        acc = added(acc, tl.load(bias + n, mask=n < N, other=0.0))
        if SWIGLU:
            up = added(up, tl.load(bias + N + n, mask=n < N, other=0.0))
    if SWIGLU:
        acc = swiglu(acc, up, dtype)
    if ADD:
        acc = added_to(tl.load(residual + offset, mask=mask, other=0.0), acc, dtype)
    return acc
