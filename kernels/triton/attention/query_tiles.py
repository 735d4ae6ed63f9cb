"""Device functions: find a tile of a prompt chunk's queries, and attend to all keys that it sees.

The tile packs query tokens of one sequence with all query heads that share a key/value head (grouped-query attention), so that
each key is read once for all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.attention.decode_parts import angles, load_with_partner, rotate
from draftline.kernels.triton.attention.fp8_cache import as_float16
from draftline.kernels.triton.attention.online_softmax import attend_cache, attend_own, no_keys, store_result

_ROWS = tl.constexpr(256)
"""Rows that are looked at together."""


@triton.jit
def _load_queries(
    queries: tl.tensor,
    row_start: tl.tensor,
    first: tl.tensor,
    query_len: tl.tensor,
    kv_head: tl.tensor,
    history: tl.tensor,
    rotation: tl.tuple,
    query_stride: tl.tensor,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ROTATE: tl.constexpr,
    QK_NORM: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The tile from a row's query token ``first`` on; with ROTATE, rotated by their positions, which follow the ``history``.

    Returns:
        The queries [M, D], the token of each within its row [M], whether it exists [M], and its index in the [T * H, D]
        results [M].
    """
    packed = tl.arange(0, BLOCK_M)
    row_query = first + packed // GROUP
    mask = row_query < query_len
    if BLOCK_M % GROUP != 0:
        mask = mask & (packed < BLOCK_M // GROUP * GROUP)
    token = (row_start + row_query).to(tl.int64)
    head = kv_head * GROUP + packed % GROUP
    dim = tl.arange(0, BLOCK_D)[None, :]
    tensor_mask = mask[:, None]
    if HEAD_DIM != BLOCK_D:
        tensor_mask = tensor_mask & (dim < HEAD_DIM)
    source = queries + (token * query_stride + head * HEAD_DIM)[:, None]
    if ROTATE:
        rope, norm, eps = rotation
        weight = (0.0, 0.0)
        if QK_NORM:
            weight = load_with_partner(norm, dim, dim < HEAD_DIM, HEAD_DIM)
        wide = load_with_partner(source, dim, tensor_mask, HEAD_DIM)
        cos, signed_sin = angles(rope, (history + row_query)[:, None], dim, tensor_mask, HEAD_DIM)
        query = rotate(wide, weight, cos, signed_sin, eps, HEAD_DIM, QK_NORM).to(queries.dtype.element_ty)
    else:
        query = tl.load(source + dim, mask=tensor_mask, other=0.0)
    return query, row_query, mask, token * NUM_HEADS + head


@triton.jit
def search_tile(
    tile: tl.tensor, query_starts: tl.tensor, num_rows: tl.tensor, QUERIES: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The row of a tile, and the tile's first query token within the row, which may not exist.

    A row's tiles begin at query_starts[row] // QUERIES + row, which grows with the row: count the beginnings passed.
    """
    passed = 0
    for base in range(0, num_rows, _ROWS):
        candidate = base + tl.arange(0, _ROWS)
        start = tl.load(query_starts + candidate, mask=candidate < num_rows, other=0)
        reached = (start // QUERIES + candidate <= tile) & (candidate < num_rows)
        passed += tl.sum(reached.to(tl.int32), axis=0)
    row = passed - 1
    return row, (tile - (tl.load(query_starts + row) // QUERIES + row)) * QUERIES


@triton.jit
def _tiles_of_rows(
    row: tl.tensor, query_starts: tl.tensor, num_rows: tl.tensor, max_short: tl.tensor, QUERIES: tl.constexpr
) -> tl.tensor:
    """The tiles of each row, 0 of one that is no chunk."""
    query_len = tl.load(query_starts + row + 1, mask=row < num_rows, other=0)
    query_len -= tl.load(query_starts + row, mask=row < num_rows, other=0)
    return tl.where(query_len > max_short, tl.cdiv(query_len, QUERIES), 0)


@triton.jit
def count_tiles(query_starts: tl.tensor, num_rows: tl.tensor, max_short: tl.tensor, QUERIES: tl.constexpr) -> tl.tensor:
    """The tiles of all rows with more than ``max_short`` query tokens."""
    total = 0
    for base in range(0, num_rows, _ROWS):
        total += tl.sum(_tiles_of_rows(base + tl.arange(0, _ROWS), query_starts, num_rows, max_short, QUERIES), axis=0)
    return total


@triton.jit
def find_tile(
    tile: tl.tensor, query_starts: tl.tensor, num_rows: tl.tensor, max_short: tl.tensor, QUERIES: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The row of one of these tiles, and the tile's first query token within the row; `search_tile` reads less, but counts padding."""
    passed_rows, passed_tiles, counted = 0, 0, 0
    for base in range(0, num_rows, _ROWS):
        tiles = _tiles_of_rows(base + tl.arange(0, _ROWS), query_starts, num_rows, max_short, QUERIES)
        ends = counted + tl.cumsum(tiles, axis=0)
        passed_rows += tl.sum((ends <= tile).to(tl.int32), axis=0)
        passed_tiles += tl.sum(tl.where(ends <= tile, tiles, 0), axis=0)
        counted += tl.sum(tiles, axis=0)
    return passed_rows, (tile - passed_tiles) * QUERIES


@triton.jit
def attend_chunk(
    row: tl.tensor,
    first: tl.tensor,
    kv_head: tl.tensor,
    queries: tl.tensor,
    rotation: tl.tuple,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    own: tl.tensor,
    out: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    query_stride: tl.tensor,
    table_stride: tl.tensor,
    max_short: tl.tensor,
    window: tl.tensor,
    scale: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROTATE: tl.constexpr,
    QK_NORM: tl.constexpr,
    OWN: tl.constexpr,
    FLOAT8: tl.constexpr,
    PAIRS: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """The tile from query token ``first`` of a row on, if it has so many tokens, and more than ``max_short``.

    With OWN, the row's own keys come from the activations.
    """
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    row_start = tl.load(query_starts + row)
    query_len = tl.load(query_starts + row + 1) - row_start
    context_len = tl.load(context_lens + row)
    if (first < query_len) & (query_len > max_short):
        history = context_len - query_len
        query, row_query, mask, flat = _load_queries(
            queries, row_start, first, query_len, kv_head, history, rotation, query_stride,
            NUM_HEADS, GROUP, HEAD_DIM, BLOCK_D, BLOCK_M, ROTATE, QK_NORM,
        )  # fmt: skip
        power = None
        if FLOAT8:
            query, power = as_float16(query)
        position = history + row_query
        table = block_tables + tl.cast(row, tl.int64) * table_stride
        # The keys that any query of the tile sees: [begin, end).
        first_query = history + first
        end = tl.minimum(first_query + QUERIES, context_len)
        begin_tile = 0
        if WINDOWED:
            begin_tile = tl.maximum(first_query - window + 1, 0) // BLOCK_N
        end_tile = tl.cdiv(end, BLOCK_N)
        total, total_max, total_sum = no_keys(BLOCK_M, BLOCK_D, PAIRS)
        if OWN:
            # The history through the block table, and the tile that it shares with the row's first own keys; then own keys.
            own_tile = tl.minimum(tl.cdiv(history, BLOCK_N), end_tile)
            if begin_tile < own_tile:
                whole_end = begin_tile if WINDOWED else history // BLOCK_N
                if not WINDOWED:
                    total, total_max, total_sum = attend_cache(
                        query, power, total, total_max, total_sum,
                        keys, values, key_scales, value_scales, table, kv_head, position,
                        0, whole_end, end, window, scale,
                        NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N,
                        WINDOWED, False, PAIRS, SOFT_CAP, PRECISION,
                    )  # fmt: skip
                total, total_max, total_sum = attend_cache(
                    query, power, total, total_max, total_sum,
                    keys, values, key_scales, value_scales, table, kv_head, position,
                    whole_end, own_tile, end, window, scale,
                    NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N,
                    WINDOWED, True, PAIRS, SOFT_CAP, PRECISION,
                )  # fmt: skip
            own_tile = tl.maximum(own_tile, begin_tile)
            key_column = (NUM_HEADS + kv_head) * HEAD_DIM
            value_column = key_column + NUM_KV_HEADS * HEAD_DIM
            # Tiles between these are seen whole by every query, and tiles from the next on reach beyond the row's end.
            whole_begin = own_tile
            if WINDOWED:
                whole_begin = tl.minimum(tl.maximum(tl.cdiv(tl.maximum(end - window, 0), BLOCK_N), own_tile), end_tile)
            whole_end = tl.minimum(tl.maximum((first_query + 1) // BLOCK_N, whole_begin), end_tile)
            partial_tile = tl.minimum(tl.maximum(context_len // BLOCK_N, own_tile), end_tile)
            total, total_max, total_sum = attend_own(
                query, power, total, total_max, total_sum,
                own, row_start, key_column, value_column, position, history,
                own_tile, partial_tile, whole_begin, whole_end, context_len, window, scale,
                BLOCK_N, WINDOWED, False, SOFT_CAP, PRECISION,
            )  # fmt: skip
            if partial_tile < end_tile:
                total, total_max, total_sum = attend_own(
                    query, power, total, total_max, total_sum,
                    own, row_start, key_column, value_column, position, history,
                    partial_tile, end_tile, whole_begin, whole_end, context_len, window, scale,
                    BLOCK_N, WINDOWED, True, SOFT_CAP, PRECISION,
                )  # fmt: skip
        else:
            total, total_max, total_sum = attend_cache(
                query, power, total, total_max, total_sum,
                keys, values, key_scales, value_scales, table, kv_head, position,
                begin_tile, end_tile, end, window, scale,
                NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N,
                WINDOWED, True, PAIRS, SOFT_CAP, PRECISION,
            )  # fmt: skip
        store_result(out, flat, mask, total, total_sum, HEAD_DIM, BLOCK_D, PAIRS)
