"""The kernel of decodes and verifies (`decode.py`)."""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.attention.decode_parts import (
    alone,
    angles,
    attend_tile,
    load_tile,
    load_with_partner,
    parts_of,
    prefetch_tile,
    rotate,
    store_heads,
    tiles_of,
)
from draftline.kernels.triton.attention.fp8_cache import as_float16
from draftline.kernels.triton.attention.join import join_last_part, store_tile
from draftline.kernels.triton.attention.online_softmax import join, no_keys, store_result
from draftline.kernels.triton.overlap import begin, end, start_next


@triton.jit(
    do_not_specialize=["num_splits", "tile_stride", "longest", "num_parts", "max_tiles", "window", "table_stride"]
)
def decode_attention_kernel(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    stats: tl.tensor,
    cache_index: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    longest_first: tl.tensor,
    part_starts: tl.tensor,
    part_rows: tl.tensor,
    part_length: tl.tensor,
    arrived: tl.tensor,
    rope: tl.tensor,
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    qkv_stride: int,
    table_stride: int,
    num_splits: int,
    tile_stride: int,
    longest: int,
    num_parts: int,
    max_tiles: int,
    window: int,
    scale: float,
    eps: float,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    NEW: tl.constexpr,
    WINDOWED: tl.constexpr,
    PAIRS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    QK_NORM: tl.constexpr,
    SPLIT: tl.constexpr,
    PARTS: tl.constexpr,
    LAST_JOINS: tl.constexpr,
    ORDERED: tl.constexpr,
    EARLY: tl.constexpr,
    ROTATE: tl.constexpr,
    NEXT: tl.constexpr,
    PLACE: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A row has up to ``longest`` query tokens, or it is a prompt chunk, which is left out. A tile has QUERIES of them.

    NEW is the padded height of a tile of a row's new keys. It is 0 where these are in the cache; then a row may have several tiles. With
    ROTATE, queries are not rotated yet.

    With SPLIT, programs share a history, and store the states of their tiles. Without, a program joins the tiles and stores the result.
    With PARTS, the first ``num_parts`` programs of each head may have a part of a history, and store the states of its tiles; see
    `HistoryParts`. Each further program has a row, and ends at once if the row has parts. With LAST_JOINS, the last program with a part of
    a row joins the row's tiles; rows have a single query then.
    With EARLY, a program loads its first tile before it waits, and puts the new token there itself: to read that again from the
    cache would take long.
    """
    tl.static_assert(not (PARTS and WINDOWED))
    tl.static_assert(not LAST_JOINS or QUERIES == 1)
    start_next(NEXT, OVERLAP)
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    # The type in which keys and values are multiplied.
    DTYPE: tl.constexpr = tl.float16 if PAIRS else qkv.dtype.element_ty
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    row = tl.program_id(0) // NUM_KV_HEADS
    split = tl.program_id(1)
    if PARTS:
        # The first programs have parts of histories, as far as there are so many.
        part = row
        has_part = part < num_parts
        num_rows = tl.num_programs(0) // NUM_KV_HEADS - num_parts
        if has_part & (part >= tl.load(part_starts + num_rows)):
            return
        row = tl.maximum(row - num_parts, 0)
    if ORDERED:
        # Where programs queue for the device, the long rows must not be the last.
        row = tl.load(longest_first + row)
    if PARTS:
        row = tl.load(part_rows + part, mask=has_part, other=row)
    token = tl.load(query_starts + row).to(tl.int64)
    query_len = (tl.load(query_starts + row + 1) - token).to(tl.int32)
    if NEW == 0:
        query_len = tl.where(query_len <= longest, query_len, 0)
    # A row of padding has no token, and its length means nothing.
    context_len = tl.where(query_len > 0, tl.load(context_lens + row), 0)
    history = context_len - query_len
    first_seen, row_tile, num_tiles = tiles_of(history, context_len, window, BLOCK_N, WINDOWED)
    share = tl.cdiv(num_tiles, num_splits)
    if PARTS:
        first_part, history_parts, part_tiles = parts_of(row, part_starts, part_length, max_tiles, BLOCK_N)
        # A program with a part has its tiles. One with a row has all of it, or none if others have the parts.
        split = tl.where(has_part, part - first_part, 0)
        share = tl.where(has_part, part_tiles, num_tiles) * (has_part == (history_parts > 0))
    first_tile = row_tile + split * share
    end_tile = tl.minimum(first_tile + share, row_tile + num_tiles)
    if first_tile >= end_tile:
        return
    first_query = 0
    if NEW == 0:
        # The queries of the tile's own row, whose history has the row's earlier ones.
        first_query = tl.program_id(2) * QUERIES
        token += first_query
        history += first_query
        query_len = tl.minimum(query_len - first_query, QUERIES)

    table = block_tables + row.to(tl.int64) * table_stride
    dim = tl.arange(0, BLOCK_D)[None, :]
    dim_mask = dim < HEAD_DIM
    # Earlier steps wrote the history: it is on its way while the previous kernel ends.
    next_tile = first_tile
    if EARLY:
        first_place = first_tile * BLOCK_N + tl.arange(0, BLOCK_N)
        first_key, first_value, written = load_tile(
            first_place, keys, values, key_scales, value_scales, table, kv_head, dim, first_seen, history,
            NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, PAIRS, DTYPE,
        )  # fmt: skip
        next_tile += 1
    if OVERLAP:
        ahead = next_tile * BLOCK_N + tl.arange(0, BLOCK_N)
        has_key = (ahead < history) & (ahead < end_tile * BLOCK_N)
        prefetch_tile(ahead, has_key, keys, values, table, kv_head, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE)
    # The tile's rows: the heads of the first token, of the second, and so on. Positions count on from the history.
    packed = tl.arange(0, BLOCK_M)[:, None]
    order = 0
    group_head = packed
    num_lanes = GROUP
    rope_mask = dim_mask
    if QUERIES > 1:
        # Rows past the last token repeat it.
        order = tl.minimum(packed // GROUP, query_len - 1)
        group_head = packed % GROUP
        num_lanes = query_len * GROUP
        rope_mask = dim_mask & (packed < num_lanes)
    query_mask = (packed < num_lanes) & dim_mask
    position = history + order
    if ROTATE:
        cos, signed_sin = angles(rope, position, dim, rope_mask, HEAD_DIM)
    if NEW > 0:
        # Tiles before this one are the history's; from it on, they have new tokens.
        first_new = tl.maximum(history // BLOCK_N, first_tile)
        new = tl.arange(0, NEW)
        is_new = new < tl.where(end_tile > first_new, query_len, 0)
        slot = tl.load(cache_index + token + new, mask=is_new, other=-1)[:, None]
        new_mask = dim_mask & is_new[:, None]
        new_cos = cos
        new_sin = signed_sin
        if QUERIES > 1:
            new_cos, new_sin = angles(rope, history + new[:, None], dim, new_mask, HEAD_DIM)
    query_weight = (0.0, 0.0)
    key_weight = (0.0, 0.0)
    if QK_NORM:
        query_weight = load_with_partner(query_norm, dim, dim_mask, HEAD_DIM)
        key_weight = load_with_partner(key_norm, dim, dim_mask, HEAD_DIM)
    begin(PLACE, OVERLAP, NEXT)
    if query_len <= 0:
        end(PLACE)
        return

    # Loads first: each would wait for memory on its own.
    heads = qkv + token * qkv_stride
    query_head = heads + order * qkv_stride + (kv_head * GROUP + group_head) * HEAD_DIM
    wide_query = load_with_partner(query_head, dim, query_mask, HEAD_DIM)
    if NEW > 0:
        new_head = heads + new[:, None] * qkv_stride + (NUM_HEADS + kv_head) * HEAD_DIM
        wide_key = load_with_partner(new_head, dim, new_mask, HEAD_DIM)
        wide_value = tl.load(new_head + NUM_KV_HEADS * HEAD_DIM + dim, mask=new_mask, other=0.0).to(tl.float32)
    query = wide_query[0]
    if ROTATE:
        query = rotate(wide_query, query_weight, cos, signed_sin, eps, HEAD_DIM, QK_NORM)
    query = query.to(qkv.dtype.element_ty)
    power = None
    if PAIRS:
        query, power = as_float16(query)

    if NEW > 0:
        if EARLY or end_tile > first_new:
            rotated_key = rotate(wide_key, key_weight, new_cos, new_sin, eps, HEAD_DIM, QK_NORM)
            # Each program writes the tokens of its own tiles.
            new_key, new_value = store_heads(
                rotated_key, wide_value, keys, values, key_scales, value_scales, slot, kv_head, dim, new_mask,
                history, new, first_tile, end_tile, NUM_KV_HEADS, HEAD_DIM, BLOCK_N,
            )  # fmt: skip

    lane = tl.arange(0, BLOCK_M)
    stored = row.to(tl.int64) * longest + first_query + lane // GROUP
    if PARTS:
        # Only parts have states: those of the first part come first, whatever its row.
        stored = first_part.to(tl.int64) * part_tiles * longest + lane // GROUP
    stored = stored * NUM_HEADS + kv_head * GROUP + lane % GROUP
    if EARLY:
        is_new_place = (first_place == history)[:, None]
        first_key = tl.where(is_new_place, alone(new_key), first_key)
        first_value = tl.where(is_new_place, alone(new_value), first_value)
        acc, row_max, row_sum = attend_tile(
            query, power, first_key, first_value, first_place, written | (first_place == history), False, position, window,
            scale, QUERIES, WINDOWED, PAIRS, SOFT_CAP, PRECISION,
        )  # fmt: skip
        first_stored = stored + (first_tile - row_tile) * tile_stride
        store_tile(partial, stats, first_stored, acc, row_max, row_sum, lane < num_lanes, HEAD_DIM, PAIRS)
        if next_tile >= end_tile:  # else the loop's pipeline would begin for nothing
            end(PLACE)
            return
    if NEW > 0:
        # The loop reads new tokens as later steps will: from the cache. All threads' stores come first.
        tl.debug_barrier()
    # Triton 3.6 does not compile a branch behind warp-group products, which tiles of 64 rows have. Smaller tiles are faster
    # with the branch.
    MASKED: tl.constexpr = PARTS and BLOCK_M >= 64
    total, total_max, total_sum = no_keys(BLOCK_M, BLOCK_D, PAIRS)
    for tile in range(next_tile, end_tile):
        place = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        key, value, seen = load_tile(
            place, keys, values, key_scales, value_scales, table, kv_head, dim, first_seen, context_len,
            NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, PAIRS, DTYPE,
        )  # fmt: skip
        whole = False
        if SPLIT or PARTS:  # the many tiles of a whole history are faster without the branch
            whole = (tile + 1) * BLOCK_N <= history + 1
            if WINDOWED:
                whole = whole & (tile * BLOCK_N >= history + query_len - window)
        acc, row_max, row_sum = attend_tile(
            query, power, key, value, place, seen, whole, position, window, scale,
            QUERIES, WINDOWED, PAIRS, SOFT_CAP, PRECISION,
        )  # fmt: skip
        target = stored + (tile - row_tile) * tile_stride
        if MASKED:
            store_tile(partial, stats, target, acc, row_max, row_sum, (lane < num_lanes) & has_part, HEAD_DIM, PAIRS)
            total, total_max, total_sum = join(total, total_max, total_sum, acc, row_max, row_sum, PAIRS)
        elif SPLIT or (PARTS and has_part):
            store_tile(partial, stats, target, acc, row_max, row_sum, lane < num_lanes, HEAD_DIM, PAIRS)
        else:
            total, total_max, total_sum = join(total, total_max, total_sum, acc, row_max, row_sum, PAIRS)
    if not SPLIT:
        flat = (token + lane // GROUP) * NUM_HEADS + kv_head * GROUP + lane % GROUP
        is_whole = lane < num_lanes
        if PARTS:
            is_whole = is_whole & (not has_part)
        store_result(out, flat, is_whole, total, total_sum, HEAD_DIM, BLOCK_D, PAIRS)
    if LAST_JOINS:
        if has_part:
            join_last_part(
                arrived + first_part * NUM_KV_HEADS + kv_head, tl.cdiv(num_tiles, part_tiles), partial, stats,
                first_part.to(tl.int64) * part_tiles, num_tiles, tile_stride, out, token, kv_head,
                NUM_KV_HEADS, GROUP, HEADS, HEAD_DIM, BLOCK_D,
            )  # fmt: skip
    end(PLACE)
