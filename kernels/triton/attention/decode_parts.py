"""Device functions of `decode_kernel.py`, in the kernel's order.

They find a row's tiles and the parts of its history; load a tile of the cache, and attend to it; rotate heads (for
`query_tiles.py`, too), and store new ones.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.attention.fp8_cache import load_pairs
from draftline.kernels.triton.attention.kv_cache import head_scale, load_heads, rounded
from draftline.kernels.triton.attention.online_softmax import scores, tile_state
from draftline.kernels.triton.overlap import prefetch
from draftline.kernels.triton.sums import square, tree_sum


@triton.jit
def tiles_of(
    history: tl.tensor, context_len: tl.tensor, window: tl.tensor, BLOCK_N: tl.constexpr, WINDOWED: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The first position that a row's queries see, the tile that has it, and the number of tiles from there: 1 at least."""
    first_seen = 0
    if WINDOWED:
        first_seen = tl.maximum(history + 1 - window, 0)
    first_tile = first_seen // BLOCK_N
    return first_seen, first_tile, tl.maximum(tl.cdiv(context_len, BLOCK_N) - first_tile, 1)


@triton.jit
def parts_of(
    row: tl.tensor, part_starts: tl.tensor, part_length: tl.tensor, max_tiles: tl.tensor, BLOCK_N: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """A row's first part, the number of its parts, and the tiles of each. Histories beyond ``max_tiles`` of all parts have none."""
    first = tl.load(part_starts + row)
    end = tl.load(part_starts + row + 1)
    tiles = tl.load(part_length) // BLOCK_N
    return first, tl.where(end * tiles <= max_tiles, end - first, 0), tiles


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
def alone(row: tl.tensor) -> tl.tensor:
    """[1, D], the same values: gathered, so that a tile that they are put into need not be laid out as they are."""
    D: tl.constexpr = row.shape[1]
    return tl.gather(tl.reshape(row, (D,)), tl.arange(0, D), axis=0)[None, :]


@triton.jit
def load_tile(
    place: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    table: tl.tensor,
    kv_head: tl.tensor,
    dim: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAIRS: tl.constexpr,
    DTYPE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The cached keys and values [N, D] at the positions ``place`` [N], and which of these are within ``[begin, end)``.

    Values are zeros at the others, whose weight is 0. Keys may be anything there, since their scores are left out.
    """
    offset, seen = cache_offset(place, table, kv_head, begin, end, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE)
    key_mask = None
    mask = seen[:, None]
    if HEAD_DIM != BLOCK_D:
        key_mask = dim < HEAD_DIM
        mask = mask & key_mask
    key = load_heads(keys, key_scales, offset, dim, key_mask, None, HEAD_DIM, DTYPE)
    if PAIRS:
        value = load_pairs(values, offset, seen, HEAD_DIM, BLOCK_D)
    else:
        value = load_heads(values, value_scales, offset, dim, mask, seen, HEAD_DIM, DTYPE)
    return key, value, seen


@triton.jit
def prefetch_tile(
    place: tl.tensor,
    mask: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    kv_head: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """Prefetch the cached keys and values at the positions ``place`` [N]; where ``mask`` is false, those of block 0."""
    HEAD_BYTES: tl.constexpr = HEAD_DIM * keys.dtype.element_ty.primitive_bitwidth // 8
    block = tl.load(table + place // BLOCK_SIZE, mask=mask, other=0)
    head = (block.to(tl.int64) * BLOCK_SIZE + place % BLOCK_SIZE) * NUM_KV_HEADS + kv_head
    for line in tl.static_range(0, HEAD_BYTES, 128):  # lines are 128 bytes
        prefetch(keys.to(tl.int64) + head * HEAD_BYTES + line)
        prefetch(values.to(tl.int64) + head * HEAD_BYTES + line)


@triton.jit
def attend_tile(
    query: tl.tensor,
    power: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    place: tl.tensor,
    seen: tl.tensor,
    whole: tl.tensor,
    position: tl.tensor,
    window: tl.tensor,
    scale: tl.tensor,
    QUERIES: tl.constexpr,
    WINDOWED: tl.constexpr,
    PAIRS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state of one tile of keys [N, D] at the positions ``place`` [N], those ``seen`` [N], for queries at ``position`` [M, 1].

    ``whole``: whether every query sees all of these keys, which saves the masks.
    """
    score = scores(query, key, power, scale, SOFT_CAP, PRECISION)
    if not whole:
        shown = seen[None, :]
        if QUERIES > 1:
            shown = shown & (place[None, :] <= position)
            if WINDOWED:
                shown = shown & (place[None, :] > position - window)
        score = tl.where(shown, score, float("-inf"))
    acc, row_max, row_sum = tile_state(score, value, 1.0 if SOFT_CAP > 0.0 else scale, PAIRS, PRECISION)
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


@triton.jit
def store_heads(
    key: tl.tensor,
    value: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    slot: tl.tensor,
    kv_head: tl.tensor,
    dim: tl.tensor,
    mask: tl.tensor,
    history: tl.tensor,
    new: tl.tensor,
    first_tile: tl.tensor,
    end_tile: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Write the keys and values [N, D] of new tokens to slots [N, 1] of the cache, and return them as it has them.

    ``new`` [N] is each token's distance from the history. Tokens outside the tiles ``[first_tile, end_tile)`` are left out.
    """
    key_scale = head_scale(tl.max(tl.abs(key), axis=1), keys)[:, None]
    value_scale = head_scale(tl.max(tl.abs(value), axis=1), values)[:, None]
    entry = slot * NUM_KV_HEADS + kv_head
    position = (history + new)[:, None]
    owned = (slot >= 0) & (position >= first_tile * BLOCK_N) & (position < end_tile * BLOCK_N)
    written = mask & owned
    key_heads = keys + entry * HEAD_DIM + dim
    key = rounded(key, key_scale, keys)
    tl.store(key_heads, key, mask=written)
    value_heads = values + entry * HEAD_DIM + dim
    value = rounded(value, value_scale, values)
    tl.store(value_heads, value, mask=written)
    if keys.dtype.element_ty == tl.int8:
        tl.store(key_scales + entry, key_scale, mask=owned)
        tl.store(value_scales + entry, value_scale, mask=owned)
    return key, value
