"""Device functions: a tile of queries attends to tile after tile of keys, with the online softmax in base 2.

Keys come from the cache through the block table (`attend_cache`), or from the activations, where a prompt chunk's own lie one
after the other (`attend_own`). What a query has seen so far is a sum of values, the largest score and a sum of weights; see
`ragged.py`, whose kernel begins and ends them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.attention.fp8_cache import add_pairs, load_pairs
from draftline.kernels.triton.attention.kv_cache import load_heads

# A finite stand-in for minus infinity: a row that has seen no key yet keeps this maximum, and differences stay numbers.
NO_KEY = tl.constexpr(-1.0e30)


@triton.jit
def _score(
    query: tl.tensor,
    key: tl.tensor,
    power: tl.tensor,
    scale: tl.tensor,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """Scores that `add_tile` multiplies by its ``factor``; ``power`` is what the queries were divided by, or None."""
    score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    if power is not None:
        score *= power
    if SOFT_CAP > 0.0:
        # cap * tanh(x / cap), with the score already in base-2 units.
        unit: tl.constexpr = SOFT_CAP * 1.4426950408889634
        score = unit * (1.0 - 2.0 / (1.0 + tl.exp2(score * scale * (2.0 * 1.4426950408889634 / unit))))
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
def add_tile(
    score: tl.tensor,
    value: tl.tensor,
    acc: tl.tensor,
    row_max: tl.tensor,
    row_sum: tl.tensor,
    scale: tl.tensor,
    PAIRS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add a tile to the running softmax. With PAIRS, values and sums are each two tiles (`fp8_cache.py`)."""
    # Scaling after the maximum leaves one multiply-add a score. (The soft cap has scaled already.)
    factor = 1.0 if SOFT_CAP > 0.0 else scale
    new_max = tl.maximum(row_max, tl.max(score, axis=1) * factor)
    weight = tl.exp2(score * factor - new_max[:, None])
    rescale = tl.exp2(row_max - new_max)
    row_sum = row_sum * rescale + tl.sum(weight, axis=1)
    if PAIRS:
        acc = add_pairs(acc, rescale, weight, value)
    else:
        acc = tl.dot(weight.to(value.dtype), value, acc * rescale[:, None], input_precision=PRECISION)
    return acc, new_max, row_sum


@triton.jit
def attend_cache(
    query: tl.tensor,
    power: tl.tensor,
    acc: tl.tensor,
    row_max: tl.tensor,
    row_sum: tl.tensor,
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
    """Add the keys of tiles ``[first_tile, last_tile)`` that are before ``end``, through the block table."""
    offset = tl.arange(0, BLOCK_N)
    dim = tl.arange(0, BLOCK_D)[None, :]
    for tile in range(first_tile, last_tile):
        position = tile * BLOCK_N + offset
        if MASKED:
            block = tl.load(table + position // BLOCK_SIZE, mask=position < end, other=0)
        else:
            block = tl.load(table + position // BLOCK_SIZE)
        slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        source = (slot * NUM_KV_HEADS + kv_head) * HEAD_DIM
        # Slots past the end may hold anything, and a NaN times a zero weight would still be one: read zeros there.
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
        score = _score(query, key, power, scale, SOFT_CAP, PRECISION)
        if MASKED:
            score = tl.where(_seen(position, query_position, end, window, WINDOWED), score, float("-inf"))
        if PAIRS:
            value = load_pairs(values, source, seen, HEAD_DIM, BLOCK_D)
        else:
            value = load_heads(values, value_scales, source, dim, load_mask, seen, HEAD_DIM, query.dtype)
        acc, row_max, row_sum = add_tile(score, value, acc, row_max, row_sum, scale, PAIRS, SOFT_CAP, PRECISION)
    return acc, row_max, row_sum


@triton.jit
def attend_own(
    query: tl.tensor,
    acc: tl.tensor,
    row_max: tl.tensor,
    row_sum: tl.tensor,
    own: tl.tensor,
    row_start: tl.tensor,
    key_column: tl.tensor,
    value_column: tl.tensor,
    row_query: tl.tensor,
    first_tile: tl.tensor,
    last_tile: tl.tensor,
    end: tl.tensor,
    window: tl.tensor,
    scale: tl.tensor,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
    MASKED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add the row's own new keys in tiles ``[first_tile, last_tile)`` that are before ``end``, from the activations.

    They lie one after the other, so that a tile is one copy by the hardware. Columns past the head are another's: the
    query has zeros there, and nobody reads that part of the sums.
    """
    offset = tl.arange(0, BLOCK_N)
    for tile in range(first_tile, last_tile):
        position = tile * BLOCK_N + offset
        key = own.load([row_start + tile * BLOCK_N, key_column])
        score = _score(query, key, None, scale, SOFT_CAP, PRECISION)
        value = own.load([row_start + tile * BLOCK_N, value_column])
        if MASKED:
            score = tl.where(_seen(position, row_query, end, window, WINDOWED), score, float("-inf"))
            # Tokens past the end are another row's, and a NaN of theirs must stay theirs.
            value = tl.where((position < end)[:, None], value, 0.0)
        acc, row_max, row_sum = add_tile(score, value, acc, row_max, row_sum, scale, False, SOFT_CAP, PRECISION)
    return acc, row_max, row_sum
