"""Device functions: a tile of queries attends to tile after tile of keys, with a softmax in base 2.

This is the arithmetic of every attention kernel, so that a query's result does not depend on which kernel runs it, with which
others, or in how many pieces:

- Keys come in tiles of one size (`AttentionShape.key_tile`) at fixed positions. Each tile is a softmax of its own. Tiles are
  joined from the first to the last (FlashAttention-2, Dao 2023; Flash-Decoding, Dao et al. 2023), by one program in
  registers or by another from memory.
- A product's order is that of the matrix units. The sum of weights is a tree (`sums.py`).
- A key that is not seen has the weight 0, which changes nothing. So it does not matter whether its tile is visited.

A state is a weighted sum of values [M, D] (with PAIRS two halves, `fp8_cache.py`), the largest score [M], and the sum of
weights [M].
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.attention.fp8_cache import load_pairs
from draftline.kernels.triton.attention.kv_cache import load_heads
from draftline.kernels.triton.sums import tree_sum

# A finite substitute for minus infinity: the maximum of a row without keys, so that differences stay numbers.
NO_KEY = tl.constexpr(-1.0e30)


@triton.jit
def no_keys(M: tl.constexpr, D: tl.constexpr, PAIRS: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state before the first key."""
    if PAIRS:
        half = tl.zeros([M, D // 2], tl.float32)
        total = (half, half)
    else:
        total = tl.zeros([M, D], tl.float32)
    return total, tl.full([M], NO_KEY, tl.float32), tl.zeros([M], tl.float32)


@triton.jit
def tile_state(
    score: tl.tensor, value: tl.tensor, factor: tl.tensor, PAIRS: tl.constexpr, PRECISION: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state of one tile alone, of scores [M, N], which are multiplied by ``factor``, and values [N, D]."""
    row_max = tl.maximum(tl.max(score, axis=1) * factor, NO_KEY)
    # One multiply-add a score.
    weight = tl.exp2(tl.fma(score, factor + tl.zeros_like(score), tl.zeros_like(score) - row_max[:, None]))
    row_sum = tree_sum(weight)
    if PAIRS:
        weight = weight.to(tl.float16)
        even = tl.dot(weight, value[0])
        acc = (even, tl.dot(weight, value[1]))
    else:
        weight = weight.to(value.dtype)
        acc = tl.dot(weight, value, input_precision=PRECISION)
    return acc, row_max, row_sum


@triton.jit
def _weighted(total: tl.tensor, before: tl.tensor, acc: tl.tensor, added: tl.tensor) -> tl.tensor:
    return tl.fma(acc, added + tl.zeros_like(acc), total * before)


@triton.jit
def join(
    total: tl.tensor,
    total_max: tl.tensor,
    total_sum: tl.tensor,
    acc: tl.tensor,
    row_max: tl.tensor,
    row_sum: tl.tensor,
    PAIRS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state of the tiles so far and of the next one."""
    new_max = tl.maximum(total_max, row_max)
    before = tl.exp2(total_max - new_max)
    added = tl.exp2(row_max - new_max)
    if PAIRS:
        even = _weighted(total[0], before[:, None], acc[0], added[:, None])
        total = (even, _weighted(total[1], before[:, None], acc[1], added[:, None]))
    else:
        total = _weighted(total, before[:, None], acc, added[:, None])
    return total, new_max, _weighted(total_sum, before, row_sum, added)


@triton.jit
def divisor(row_sum: tl.tensor) -> tl.tensor:
    """[M, 1]: the sums of weights; 1 for a row of padding, which sees no key."""
    return tl.where(row_sum > 0.0, row_sum, 1.0)[:, None]


@triton.jit
def store_result(
    out: tl.tensor,
    flat: tl.tensor,
    mask: tl.tensor,
    total: tl.tensor,
    total_sum: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAIRS: tl.constexpr,
) -> None:
    """Store the attention of queries [M] at the indices ``flat`` [M] of ``out`` [., D], where ``mask`` [M] says so."""
    if PAIRS:
        total = tl.interleave(total[0], total[1])
    dim = tl.arange(0, BLOCK_D)[None, :]
    result = total / divisor(total_sum)
    tl.store(
        out + flat[:, None] * HEAD_DIM + dim, result.to(out.dtype.element_ty), mask=mask[:, None] & (dim < HEAD_DIM)
    )


@triton.jit
def capped(score: tl.tensor, scale: tl.tensor, SOFT_CAP: tl.constexpr) -> tl.tensor:
    """``cap * tanh(x / cap)`` of scores x / scale, in base-2 units, which need no factor any more."""
    unit: tl.constexpr = SOFT_CAP * 1.4426950408889634
    return unit * (1.0 - 2.0 / (1.0 + tl.exp2(score * scale * (2.0 * 1.4426950408889634 / unit))))


@triton.jit
def scores(
    query: tl.tensor,
    key: tl.tensor,
    power: tl.tensor,
    scale: tl.tensor,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """Scores for `tile_state`. ``power`` undoes a division of the queries; or None."""
    score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    if power is not None:
        score *= power
    if SOFT_CAP > 0.0:
        score = capped(score, scale, SOFT_CAP)
    return score


@triton.jit
def _seen(
    position: tl.tensor, query_position: tl.tensor, end: tl.tensor, window: tl.tensor, WINDOWED: tl.constexpr
) -> tl.tensor:
    """[M, N]: whether a query sees a position before ``end``."""
    seen = (position[None, :] <= query_position[:, None]) & (position < end)[None, :]
    if WINDOWED:
        seen = seen & (position[None, :] > query_position[:, None] - window)
    return seen


@triton.jit
def attend_cache(
    query: tl.tensor,
    power: tl.tensor,
    total: tl.tensor,
    total_max: tl.tensor,
    total_sum: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    table: tl.tensor,
    kv_head: tl.tensor,
    query_position: tl.tensor,
    first_tile: tl.tensor,
    last_tile: tl.tensor,
    end: tl.tensor,
    window: tl.tensor,
    scale: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
    MASKED: tl.constexpr,
    PAIRS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Attend to the keys before ``end`` in tiles ``[first_tile, last_tile)``, through the block table."""
    dim = tl.arange(0, BLOCK_D)[None, :]
    factor = 1.0 if SOFT_CAP > 0.0 else scale
    for tile in range(first_tile, last_tile):
        position = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        if MASKED:
            block = tl.load(table + position // BLOCK_SIZE, mask=position < end, other=0)
        else:
            block = tl.load(table + position // BLOCK_SIZE)
        slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        source = (slot * NUM_KV_HEADS + kv_head) * HEAD_DIM
        # Entries past the end may hold anything, and NaN times a zero weight is NaN: read zeros there.
        seen = None
        load_mask = None
        if MASKED:
            seen = position < end
            load_mask = seen[:, None]
            if HEAD_DIM != BLOCK_D:
                load_mask = load_mask & (dim < HEAD_DIM)
        elif HEAD_DIM != BLOCK_D:
            load_mask = dim < HEAD_DIM
        key = load_heads(keys, key_scales, source, dim, load_mask, seen, HEAD_DIM, query.dtype)
        score = scores(query, key, power, scale, SOFT_CAP, PRECISION)
        if MASKED:
            score = tl.where(_seen(position, query_position, end, window, WINDOWED), score, float("-inf"))
        if PAIRS:
            value = load_pairs(values, source, seen, HEAD_DIM, BLOCK_D)
        else:
            value = load_heads(values, value_scales, source, dim, load_mask, seen, HEAD_DIM, query.dtype)
        acc, row_max, row_sum = tile_state(score, value, factor, PAIRS, PRECISION)
        total, total_max, total_sum = join(total, total_max, total_sum, acc, row_max, row_sum, PAIRS)
    return total, total_max, total_sum


@triton.jit
def attend_own(
    query: tl.tensor,
    power: tl.tensor,
    total: tl.tensor,
    total_max: tl.tensor,
    total_sum: tl.tensor,
    own: tl.tensor,
    row_start: tl.tensor,
    key_column: tl.tensor,
    value_column: tl.tensor,
    query_position: tl.tensor,
    history: tl.tensor,
    first_tile: tl.tensor,
    last_tile: tl.tensor,
    whole_begin: tl.tensor,
    whole_end: tl.tensor,
    end: tl.tensor,
    window: tl.tensor,
    scale: tl.tensor,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
    PARTIAL: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Attend to the row's own new keys before ``end`` in tiles ``[first_tile, last_tile)``, from the activations.

    Every query sees all keys of tiles ``[whole_begin, whole_end)``. With PARTIAL a tile may reach beyond the row's end.

    They are contiguous, so the hardware copies a tile at once. Columns past the head belong to another head: the query
    has zeros there, and that part of the sums is not read. The first tile must not begin before ``history``.
    """
    factor = 1.0 if SOFT_CAP > 0.0 else scale
    for tile in range(first_tile, last_tile):
        position = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        token = row_start + tile * BLOCK_N - history
        score = scores(query, own.load([token, key_column]).to(query.dtype), power, scale, SOFT_CAP, PRECISION)
        value = own.load([token, value_column]).to(query.dtype)
        if PARTIAL:
            # Tokens past the end belong to another row: its NaN must not reach this one.
            value = tl.where((position < end)[:, None], value, 0.0)
        # A branch, not a loop of its own: each loop fills its pipeline anew, which short prompts would feel.
        if (tile < whole_begin) | (tile >= whole_end):
            score = tl.where(_seen(position, query_position, end, window, WINDOWED), score, float("-inf"))
        acc, row_max, row_sum = tile_state(score, value, factor, False, PRECISION)
        total, total_max, total_sum = join(total, total_max, total_sum, acc, row_max, row_sum, False)
    return total, total_max, total_sum
