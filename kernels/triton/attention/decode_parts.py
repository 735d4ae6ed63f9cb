"""Device functions of `decode.py`: find a tile of the cache, attend to it, rotate heads, and join parts."""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.attention.online_softmax import NO_KEY, add_tile


@triton.jit
def cache_offset(
    tile: tl.tensor,
    table: tl.tensor,
    kv_head: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """[BLOCK_N] offsets of a tile's keys in the cache, and whether each is within ``[begin, end)``."""
    position = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    seen = (position >= begin) & (position < end)
    block = tl.load(table + position // BLOCK_SIZE, mask=seen, other=0)
    slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    return (slot * NUM_KV_HEADS + kv_head) * HEAD_DIM, seen


@triton.jit
def visible(
    tile: tl.tensor,
    seen: tl.tensor,
    position: tl.tensor,
    window: tl.tensor,
    BLOCK_N: tl.constexpr,
    EACH: tl.constexpr,
) -> tl.tensor:
    """Which of a tile's ``seen`` keys the queries at ``position`` [M, 1] see: [1, N], or [M, N] where EACH has its window."""
    if EACH:
        return seen[None, :] & ((tile * BLOCK_N + tl.arange(0, BLOCK_N))[None, :] > position - window)
    else:
        return seen[None, :]


@triton.jit
def attend_tile(
    query: tl.tensor,
    power: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    seen: tl.tensor,
    acc: tl.tensor,
    row_max: tl.tensor,
    row_sum: tl.tensor,
    scale: tl.tensor,
    PAIRS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Attend to the keys of a tile that are ``seen``, [M, N] or [1, N].

    With PAIRS the queries were divided by ``power``, and values and sums are each two tiles (`fp8_cache.py`).
    """
    score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    if PAIRS:
        score *= power
    score = tl.where(seen, score, float("-inf"))
    acc, row_max, row_sum = add_tile(score, value, acc, row_max, row_sum, scale, PAIRS, 0.0, PRECISION)
    return acc, row_max, row_sum


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
        inverse = tl.rsqrt(tl.sum(x * x, axis=1) / HEAD_DIM + eps)[:, None]
        x = x * inverse * tl.load(norm + dim, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
        other = other * inverse * tl.load(norm + partner, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
    return x * cos + other * signed_sin


@triton.jit
def split_parts(
    token: tl.tensor,
    kv_head: tl.tensor,
    split: tl.tensor,
    num_splits: tl.tensor,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The indices [M] at which `join.py` reads a split's results, by lane of the tile, and the lanes [M]."""
    lane = tl.arange(0, BLOCK_M)
    flat = (token + lane // GROUP) * NUM_HEADS + kv_head * GROUP + lane % GROUP
    return flat * num_splits + split, lane


@triton.jit
def join(
    partial: tl.tensor,
    log_sums: tl.tensor,
    out: tl.tensor,
    first_part: tl.tensor,
    num_parts: tl.tensor,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COLS: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    """Join the parts of one row and key/value head, each weighted by its share of the softmax's sum."""
    col = tl.arange(0, COLS)
    col_mask = col < GROUP * HEAD_DIM
    acc = tl.zeros([COLS], tl.float32)
    total = tl.zeros([COLS], tl.float32)
    largest = tl.full([COLS], NO_KEY, tl.float32)
    for base in range(0, num_parts, PARTS):
        part = base + tl.arange(0, PARTS)[:, None]
        mask = (part < num_parts) & col_mask[None, :]
        row = first_part + part
        # Not through the L1 cache, which may lack other multiprocessors' stores.
        log_sum = tl.load(
            log_sums + row * GROUP + (col // HEAD_DIM)[None, :], mask=mask, other=NO_KEY, cache_modifier=".cg"
        )
        result = tl.load(partial + row * (GROUP * HEAD_DIM) + col[None, :], mask=mask, other=0.0, cache_modifier=".cg")
        new_largest = tl.maximum(largest, tl.max(log_sum, axis=0))
        weight = tl.exp2(log_sum - new_largest[None, :])
        rescale = tl.exp2(largest - new_largest)
        acc = acc * rescale + tl.sum(result * weight, axis=0)
        total = total * rescale + tl.sum(weight, axis=0)
        largest = new_largest
    tl.store(out + col, (acc / total).to(out.dtype.element_ty), mask=col_mask)
