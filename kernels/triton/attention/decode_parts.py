"""Device functions of `decode.py`: find a tile of the cache, rotate heads, and put new heads into a tile."""

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
def with_new(tile: tl.tensor, order: tl.tensor, new: tl.tensor) -> tl.tensor:
    """A tile [N, D] of the cache, zero where it has no head yet, with new heads [NEW, D] in their places.

    ``order`` [N] numbers the new ones from 0; others are negative, or at least NEW.
    """
    if new.shape[0] == 1:
        return tl.where((order == 0)[:, None], tl.broadcast_to(new, tile.shape), tile)
    else:
        # Products with 1 and 0 are exact.
        chosen = (order[:, None] == tl.arange(0, new.shape[0])[None, :]).to(tile.dtype)
        return tile + tl.dot(chosen, new, input_precision="ieee").to(tile.dtype)


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
def rotate(
    head: tl.tensor,
    dim: tl.tensor,
    partner: tl.tensor,
    mask: tl.tensor,
    norm: tl.tensor,
    cos: tl.tensor,
    signed_sin: tl.tensor,
    eps: tl.tensor,
    HEAD_DIM: tl.constexpr,
    QK_NORM: tl.constexpr,
) -> tl.tensor:
    """Heads [N, D] at pointers [N, 1], normalised and rotated. ``partner`` is the other of the two dimensions of a pair."""
    x = tl.load(head + dim, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(head + partner, mask=mask, other=0.0).to(tl.float32)
    if QK_NORM:
        inverse = tl.rsqrt(tree_sum(square(x)) / HEAD_DIM + eps)[:, None]
        x = x * inverse * tl.load(norm + dim, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
        other = other * inverse * tl.load(norm + partner, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
    return tl.fma(other, signed_sin, x * cos)
