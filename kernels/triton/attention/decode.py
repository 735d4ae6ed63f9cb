"""Decodes and verifies: (QK-norm,) rotation, cache write and attention of a few tokens a row in one launch, or in two.

A program owns one row, one key/value head and some tiles of the row's history. It rotates the row's queries of the heads
that share the key/value head, packed into one tile, and attends to its tiles of keys through the block table
(`online_softmax.py`). The program whose tiles hold the new tokens' positions first rotates the new keys and writes keys and
values to the cache, and then reads them there like all others.

Of few rows, programs share a history (Flash-Decoding, Dao et al. 2023), and a second launch joins its tiles (`join.py`). A CUDA graph's
bucket decides the number of programs, but the row decides the number of keys: a program without tiles is short. Of many rows, a
program has all of a history, and joins the tiles itself.

Beside prompts, keys are rotated and written before (`rope.py`), and the launch may run at the same time as that of the chunks
(`ragged.py`).

Not here: prompt chunks (`chunks.py`), and the number of programs (`decode_plan.py`).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.triton.attention.decode_parts import (
    alone,
    angles,
    attend_tile,
    load_tile,
    load_with_partner,
    rotate,
)
from draftline.kernels.triton.attention.decode_plan import MAX_QUERIES, DecodePlan
from draftline.kernels.triton.attention.fp8_cache import as_float16, multiplies_float16
from draftline.kernels.triton.attention.join import TileStates, join_tiles, store_tile
from draftline.kernels.triton.attention.kv_cache import head_scale, rounded
from draftline.kernels.triton.attention.online_softmax import join, no_keys, store_result
from draftline.kernels.triton.overlap import ALONE, SECOND, begin, end, launch_options, prefetch, start_next
from draftline.kernels.triton.rows import empty_rows

_LOG2_E = math.log2(math.e)


@triton.jit(do_not_specialize=["num_splits", "tile_stride", "longest", "window", "table_stride"])
def _decode_attention_kernel(
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
    rope: tl.tensor,
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    qkv_stride: int,
    table_stride: int,
    num_splits: int,
    tile_stride: int,
    longest: int,
    window: int,
    scale: float,
    eps: float,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
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
    With EARLY, a program loads its first tile before it waits, and puts the new token there itself: to read that again from the
    cache would take long.
    """
    start_next(NEXT, OVERLAP)
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    # The type in which keys and values are multiplied.
    DTYPE: tl.constexpr = tl.float16 if PAIRS else qkv.dtype.element_ty
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    row = tl.program_id(0) // NUM_KV_HEADS
    split = tl.program_id(1)
    if ORDERED:
        # Where programs queue for the device, the long rows must not be the last.
        row = tl.load(longest_first + row)
    token = tl.load(query_starts + row).to(tl.int64)
    query_len = (tl.load(query_starts + row + 1) - token).to(tl.int32)
    if NEW == 0:
        query_len = tl.where(query_len <= longest, query_len, 0)
    # A row of padding has no token, and its length means nothing.
    context_len = tl.where(query_len > 0, tl.load(context_lens + row), 0)
    history = context_len - query_len
    first_seen = 0
    if WINDOWED:
        first_seen = tl.maximum(history + 1 - window, 0)
    row_tile = first_seen // BLOCK_N
    num_tiles = tl.maximum(tl.cdiv(context_len, BLOCK_N) - row_tile, 1)
    share = tl.cdiv(num_tiles, num_splits)
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
        # Lines are 128 bytes.
        ahead = next_tile * BLOCK_N + tl.arange(0, BLOCK_N)
        block = tl.load(table + ahead // BLOCK_SIZE, mask=(ahead < history) & (ahead < end_tile * BLOCK_N), other=0)
        line = (block.to(tl.int64) * BLOCK_SIZE + ahead % BLOCK_SIZE) * NUM_KV_HEADS + kv_head
        for start in tl.static_range(0, HEAD_DIM * keys.dtype.element_ty.primitive_bitwidth // 8, 128):
            prefetch(keys.to(tl.int64) + line * (HEAD_DIM * keys.dtype.element_ty.primitive_bitwidth // 8) + start)
            prefetch(values.to(tl.int64) + line * (HEAD_DIM * keys.dtype.element_ty.primitive_bitwidth // 8) + start)
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
            key_scale = head_scale(tl.max(tl.abs(rotated_key), axis=1), keys)[:, None]
            value_scale = head_scale(tl.max(tl.abs(wide_value), axis=1), values)[:, None]
            entry = slot * NUM_KV_HEADS + kv_head
            # Each program writes the tokens of its own tiles.
            new_place = (history + new)[:, None]
            owned = (slot >= 0) & (new_place >= first_tile * BLOCK_N) & (new_place < end_tile * BLOCK_N)
            tl.store(keys + entry * HEAD_DIM + dim, rounded(rotated_key, key_scale, keys), mask=new_mask & owned)
            tl.store(values + entry * HEAD_DIM + dim, rounded(wide_value, value_scale, values), mask=new_mask & owned)
            if keys.dtype.element_ty == tl.int8:
                tl.store(key_scales + entry, key_scale, mask=owned)
                tl.store(value_scales + entry, value_scale, mask=owned)

    lane = tl.arange(0, BLOCK_M)
    stored = row.to(tl.int64) * longest + first_query + lane // GROUP
    stored = stored * NUM_HEADS + kv_head * GROUP + lane % GROUP
    if EARLY:
        is_new_place = (first_place == history)[:, None]
        first_key = tl.where(is_new_place, alone(rounded(rotated_key, key_scale, keys)), first_key)
        first_value = tl.where(is_new_place, alone(rounded(wide_value, value_scale, values)), first_value)
        acc, row_max, row_sum = attend_tile(
            query, power, first_key, first_value, first_place, written | (first_place == history), position, window, scale,
            QUERIES, WINDOWED, PAIRS, SOFT_CAP, PRECISION,
        )  # fmt: skip
        first_stored = stored + (first_tile - row_tile) * tile_stride
        store_tile(partial, stats, first_stored, acc, row_max, row_sum, lane < num_lanes, HEAD_DIM, PAIRS)
        if next_tile >= end_tile:  # else the loop's pipeline would begin for nothing
            end(PLACE)
            return
    if NEW > 0:
        # The loop reads new tokens as later steps will: from the cache. All threads' stores come first.
        tl.debug_barrier()
    total, total_max, total_sum = no_keys(BLOCK_M, BLOCK_D, PAIRS)
    for tile in range(next_tile, end_tile):
        place = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        key, value, seen = load_tile(
            place, keys, values, key_scales, value_scales, table, kv_head, dim, first_seen, context_len,
            NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, PAIRS, DTYPE,
        )  # fmt: skip
        acc, row_max, row_sum = attend_tile(
            query, power, key, value, place, seen, position, window, scale,
            QUERIES, WINDOWED, PAIRS, SOFT_CAP, PRECISION,
        )  # fmt: skip
        if SPLIT:
            target = stored + (tile - row_tile) * tile_stride
            store_tile(partial, stats, target, acc, row_max, row_sum, lane < num_lanes, HEAD_DIM, PAIRS)
        else:
            total, total_max, total_sum = join(total, total_max, total_sum, acc, row_max, row_sum, PAIRS)
    if not SPLIT:
        flat = (token + lane // GROUP) * NUM_HEADS + kv_head * GROUP + lane % GROUP
        store_result(out, flat, lane < num_lanes, total, total_sum, HEAD_DIM, BLOCK_D, PAIRS)
    end(PLACE)


def decode_attention(
    qkv: Tensor,
    batch: Batch,
    cache: LayerCache,
    spec: AttentionSpec,
    *,
    plan: DecodePlan,
    overlap: bool,
) -> Tensor:
    """``Ops.rope_attention`` of rows with up to ``plan.queries`` query tokens; rows of padding have none.

    Args:
        qkv: [T, (H + 2 G) * D].
        batch: rows and block tables.
        cache: the layer's keys and values.
        spec: the layer's attention.
        plan: the tile of each program, the query tokens that it holds, and the most tiles of a history.
        overlap: start before the previous kernel has ended.
    """
    num_kv_heads, head_dim = cache.keys.shape[2:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    out = empty_rows(qkv.shape[0], num_heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    new = 1 if plan.queries == 1 else MAX_QUERIES
    _launch(
        qkv, num_heads, batch, cache, spec, out, plan=plan, new=new, rotate=True, place=ALONE.value, overlap=overlap
    )
    return out


def attend_short(
    queries: Tensor,
    batch: Batch,
    cache: LayerCache,
    spec: AttentionSpec,
    out: Tensor,
    *,
    plan: DecodePlan,
    rotate: bool,
    place: int = ALONE.value,
    overlap: bool = False,
) -> None:
    """Write the attention of a batch's rows with up to ``plan.longest`` query tokens, whose keys are in the cache.

    Args:
        queries: [T, H, D], each token's heads contiguous.
        batch: rows and block tables.
        cache: the layer's keys and values, the new ones included.
        spec: the layer's attention.
        out: [T, H * D].
        plan: see `plan_short`.
        rotate: whether the queries are to be normalised and rotated here.
        place: one of `overlap.py`'s.
        overlap: start before the previous kernel has ended.
    """
    heads = queries.shape[1]
    _launch(queries, heads, batch, cache, spec, out, plan=plan, new=0, rotate=rotate, place=place, overlap=overlap)


def _launch(
    qkv: Tensor,
    num_heads: int,
    batch: Batch,
    cache: LayerCache,
    spec: AttentionSpec,
    out: Tensor,
    *,
    plan: DecodePlan,
    new: int,
    rotate: bool,
    place: int,
    overlap: bool,
) -> None:
    """Launch the kernel, and the join where programs share histories."""
    block_size, num_kv_heads, head_dim = cache.keys.shape[1:]
    rows = batch.context_lens.shape[0]
    tile, num_splits = plan.tile, plan.num_splits
    split, ordered = num_splits > 1, num_splits == 1 and batch.longest_first is not None
    states = TileStates.empty(plan.max_tiles if split else 0, rows, plan.longest, num_heads, head_dim, qkv.device)
    # An unused argument must still be a tensor.
    query_norm, key_norm = spec.norms if spec.norms is not None else (qkv, qkv)
    key_scales, value_scales = cache.scales if cache.scales is not None else (qkv, qkv)
    _decode_attention_kernel[(rows * num_kv_heads, num_splits, plan.tiles_per_row)](
        qkv,
        cache.keys,
        cache.values,
        key_scales,
        value_scales,
        out,
        states.partial,
        states.stats,
        batch.cache_index,
        batch.query_starts,
        batch.context_lens,
        batch.block_tables,
        batch.longest_first if ordered else batch.context_lens,
        spec.rope,
        query_norm,
        key_norm,
        qkv.stride(0),
        batch.block_tables.stride(0),
        num_splits,
        states.tile_stride,
        plan.longest,
        spec.window if spec.window is not None else 0,
        spec.scale * _LOG2_E,
        spec.eps,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        BLOCK_SIZE=block_size,
        QUERIES=plan.queries,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        NEW=new,
        WINDOWED=spec.window is not None,
        PAIRS=multiplies_float16(cache.keys, qkv),
        SOFT_CAP=spec.soft_cap,
        QK_NORM=rotate and spec.norms is not None,
        SPLIT=split,
        ORDERED=ordered,
        EARLY=split and plan.early and batch.settled and cache.keys.dtype == qkv.dtype,
        ROTATE=rotate,
        NEXT=plan.starts_next,
        PLACE=place,
        OVERLAP=overlap,
        PRECISION="ieee" if qkv.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **launch_options(overlap or place == SECOND.value),
    )
    if split:
        join_tiles(states, out, batch, spec.window, tile.block_n, starts_next=plan.starts_next, overlap=overlap)
