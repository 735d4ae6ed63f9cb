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
def load_addends(
    bias: tl.tensor,
    residual: tl.tensor,
    n: tl.tensor,
    offset: tl.tensor,
    mask: tl.tensor,
    N: tl.tensor,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """What `finish` adds: the bias of the sums, that of the ups, and the residual stream; 0 for what is not there.

    Loaded before the product where registers hold them meanwhile: behind it, the loads would take as long as some tiles.

    Args:
        bias: [N], with SWIGLU [2 N].
        residual: [M, N].
        n: the columns of the sums, of a shape that broadcasts to theirs.
        offset: the offsets of the sums in the residual.
        mask: which of them exist.
        N: output columns.
        BIAS: whether there is a bias.
        SWIGLU: whether the result is ``silu(gate) * up``.
        ADD: whether the residual is added.
    """
    first = tl.load(bias + n, mask=n < N, other=0.0) if BIAS else 0.0
    second = tl.load(bias + N + n, mask=n < N, other=0.0) if BIAS and SWIGLU else 0.0
    return first, second, tl.load(residual + offset, mask=mask, other=0.0) if ADD else 0.0


@triton.jit
def finish(
    acc: tl.tensor,
    up: tl.tensor,
    addends: tl.tuple,
    dtype: tl.constexpr,
    BIAS: tl.constexpr,
    SWIGLU: tl.constexpr,
    ADD: tl.constexpr,
) -> tl.tensor:
    """The layer's result, in float32, from its sums.

    Args:
        acc: float32 sums, of any shape; with SWIGLU, the gates'.
        up: with SWIGLU, the other half's sums.
        addends: as `load_addends` gives them.
        dtype: of the layer's result.
        BIAS: whether there is a bias.
        SWIGLU: whether the result is ``silu(gate) * up``.
        ADD: whether the residual is added.
    """
    if BIAS:
        acc = added(acc, addends[0])
        if SWIGLU:
            up = added(up, addends[1])
    if SWIGLU:
        acc = swiglu(acc, up, dtype)
    if ADD:
        acc = added_to(addends[2], acc, dtype)
    return acc
