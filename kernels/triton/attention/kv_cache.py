"""Reading and writing heads of the key/value cache in its type: wide, FP8, or INT8 with a scale a head.

A quantized cache is read in the activations' type. A step attends to its new keys and values rounded, as later steps read
them. So a token's result does not depend on which of its keys came from the cache.

The compiler would multiply eight-bit tiles in an order of their own, since a thread reads more of them at a time. So what is
read is hidden from it: products add in the order of wide tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.linear.eight_bit import round_to
from draftline.kernels.triton.sums import INTERPRETED


@triton.jit
def _load(pointer: tl.tensor, mask: tl.tensor) -> tl.tensor:
    if mask is None:
        return tl.load(pointer)
    else:
        return tl.load(pointer, mask=mask, other=0.0)


@triton.jit
def _hidden(value: tl.tensor) -> tl.tensor:
    """The value, of unknown origin."""
    if INTERPRETED or value.dtype == tl.float32:
        return value
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [value], dtype=value.dtype, is_pure=False, pack=2
    )  # fmt: skip


@triton.jit
def load_heads(
    cache: tl.tensor,
    scales: tl.tensor,
    offset: tl.tensor,
    dim: tl.tensor,
    mask: tl.tensor,
    seen: tl.tensor,
    HEAD_DIM: tl.constexpr,
    DTYPE: tl.constexpr,
) -> tl.tensor:
    """[N, D] heads of the cache.

    Args:
        cache: keys or values.
        scales: of an INT8 cache, one for each entry and head; else unused.
        offset: [N], each head's first element.
        dim: [1, D].
        mask: [N, D] or [N, 1], or None for all.
        seen: [N], whether to load each head, or None for all.
        HEAD_DIM: size of a head.
        DTYPE: of the result.
    """
    stored = _load(cache + offset[:, None] + dim, mask)
    if cache.dtype.element_ty == tl.int8:
        scale = _load(scales + offset // HEAD_DIM, seen)
        return _hidden((stored.to(tl.float32) * scale[:, None]).to(DTYPE))
    elif cache.dtype.element_ty == tl.float8e4nv:
        return _hidden(stored.to(DTYPE))
    else:
        return stored.to(DTYPE)


@triton.jit
def head_scale(largest: tl.tensor, cache: tl.tensor) -> tl.tensor:
    """The scale of heads with these largest magnitudes."""
    if cache.dtype.element_ty == tl.int8:
        return largest / 127.0
    else:
        return tl.full(largest.shape, 1.0, tl.float32)


@triton.jit
def rounded(value: tl.tensor, scale: tl.tensor, cache: tl.tensor) -> tl.tensor:
    """Float32 rounded to the cache's type, given its scale."""
    kept: tl.constexpr = cache.dtype.element_ty
    if kept == tl.int8:
        return round_to(tl.clamp(value / tl.maximum(scale, 1.0e-30), -127.0, 127.0), kept)
    elif kept == tl.float8e4nv:
        return round_to(tl.clamp(value, -448.0, 448.0), kept)
    else:
        return value.to(kept)
