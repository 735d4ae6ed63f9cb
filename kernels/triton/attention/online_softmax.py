"""Device functions: a tile of queries attends to tile after tile of keys, with the online softmax in base 2.

Keys come from the cache through the block table (`attend_cache`), or from the activations, where a prompt chunk's own are
contiguous (`attend_own`). A query's state is a weighted sum of values, the largest score and the sum of weights. The
kernel in `ragged.py` initialises and normalises it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.attention.fp8_cache import add_pairs, load_pairs
from draftline.kernels.triton.attention.kv_cache import load_heads

# A finite substitute for minus infinity: the maximum of a row without keys, so that differences stay numbers.
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
    """Scores for `add_tile`, which multiplies them by its ``factor``. ``power`` undoes a division of the queries; or None."""
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
    # Scaling after the maximum needs one multiply-add a score. (The soft cap has scaled already.)
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
    """Attend to the keys before ``end`` in tiles ``[first_tile, last_tile)``, through the block table."""
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
    """Attend to the row's own new keys before ``end`` in tiles ``[first_tile, last_tile)``, from the activations.

    They are contiguous, so the hardware copies a tile at once. Columns past the head belong to another head: the query
    has zeros there, and that part of the sums is not read.
    """
    offset = tl.arange(0, BLOCK_N)
    for tile in range(first_tile, last_tile):
        position = tile * BLOCK_N + offset
        key = own.load([row_start + tile * BLOCK_N, key_column])
        score = _score(query, key, None, scale, SOFT_CAP, PRECISION)
        value = own.load([row_start + tile * BLOCK_N, value_column])
        if MASKED:
            score = tl.where(_seen(position, row_query, end, window, WINDOWED), score, float("-inf"))
            # Tokens past the end belong to another row: its NaN must not reach this one.
            value = tl.where((position < end)[:, None], value, 0.0)
        acc, row_max, row_sum = add_tile(score, value, acc, row_max, row_sum, scale, False, SOFT_CAP, PRECISION)
    return acc, row_max, row_sum
