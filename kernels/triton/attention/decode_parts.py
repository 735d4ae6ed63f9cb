"""Device functions: find a tile of the cache (`decode.py`), and rotate heads (`query_tiles.py` too)."""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.sums import square, tree_sum


@triton.jit
def cache_offset(
    position: tl.tensor,
    table: tl.tensor,
    kv_head: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """[N] offsets of the keys at these positions in the cache, and whether each is within ``[begin, end)``."""
    seen = (position >= begin) & (position < end)
    block = tl.load(table + position // BLOCK_SIZE, mask=seen, other=0)
    slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    return (slot * NUM_KV_HEADS + kv_head) * HEAD_DIM, seen


@triton.jit
def angles(
    rope: tl.tensor, position: tl.tensor, dim: tl.tensor, mask: tl.tensor, HEAD_DIM: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Cosine and signed sine of every dimension at a position, or at [N, 1] positions."""
    HALF: tl.constexpr = HEAD_DIM // 2
    angle = rope + position.to(tl.int64) * HEAD_DIM + dim % HALF
    cos = tl.load(angle, mask=mask, other=0.0)
    sin = tl.load(angle + HALF, mask=mask, other=0.0)
    return cos, tl.where(dim < HALF, -sin, sin)


@triton.jit
def load_with_partner(
    start: tl.tensor, dim: tl.tensor, mask: tl.tensor, HEAD_DIM: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Two tiles in float32: dimensions ``dim`` from ``start`` on, and the other dimension of each rotated pair."""
    # Written so that the compiler sees contiguous pieces; a `where` would hide them.
    partner = (dim + HEAD_DIM // 2) % HEAD_DIM
    x = tl.load(start + dim, mask=mask, other=0.0).to(tl.float32)
    return x, tl.load(start + partner, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def rotate(
    head: tl.tuple,
    norm: tl.tuple,
    cos: tl.tensor,
    signed_sin: tl.tensor,
    eps: tl.tensor,
    HEAD_DIM: tl.constexpr,
    QK_NORM: tl.constexpr,
) -> tl.tensor:
    """Heads [N, D], normalised and rotated. Heads and norm's weights [1, D] are tiles of `load_with_partner`."""
    x, other = head
    if QK_NORM:
        inverse = tl.rsqrt(tree_sum(square(x)) / HEAD_DIM + eps)[:, None]
        x = x * inverse * norm[0]
        other = other * inverse * norm[1]
    return tl.fma(other, signed_sin, x * cos)
