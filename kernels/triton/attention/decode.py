"""Decodes and verifies in one or two launches: (QK-norm,) rotation, cache write and attention of a few tokens a row.

A program owns one row, one key/value head and a part of the row's history. It rotates the row's queries of the heads that
share the key/value head, packed into one tile. It attends to its part through the block table, with the online softmax of
FlashAttention-2 (Dao 2023) in base 2. The program of the first part also rotates the new tokens' own keys, writes keys and
values to the cache, and begins its softmax with them: each token sees itself and those before it.

Where a history has several parts (Flash-Decoding, Dao et al. 2023), the last program joins them. With several query
tokens that is too much for one program, and a second launch joins (`join.py`). A CUDA graph's bucket decides the number of
parts, but the row decides the number of keys: a part without keys costs one short program.

Not here: prompt chunks (`ragged.py`, `rope.py`), and the number of parts (`plan.py`).
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
    angles,
    attend_tile,
    cache_offset,
    join,
    rotate,
    split_parts,
    visible,
)
from draftline.kernels.triton.attention.fp8_cache import as_float16, load_pairs, paired, pairs
from draftline.kernels.triton.attention.join import join_splits
from draftline.kernels.triton.attention.kv_cache import head_scale, load_heads, rounded
from draftline.kernels.triton.attention.online_softmax import NO_KEY
from draftline.kernels.triton.attention.plan import MAX_QUERIES, DecodePlan
from draftline.kernels.triton.overlap import launch_options, wait_for_previous

_LOG2_E = math.log2(math.e)


@triton.jit(do_not_specialize=["num_splits", "window", "table_stride"])
def _decode_attention_kernel(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    stats: tl.tensor,
    arrivals: tl.tensor,
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
    JOIN_COLS: tl.constexpr,
    JOIN_PARTS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOWED: tl.constexpr,
    PAIRS: tl.constexpr,
    QK_NORM: tl.constexpr,
    ORDERED: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A row has up to QUERIES query tokens; NEW is the padded height of a tile of them."""
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    HALF: tl.constexpr = HEAD_DIM // 2
    EACH: tl.constexpr = WINDOWED and QUERIES > 1
    # The type in which keys and values are multiplied.
    DTYPE: tl.constexpr = tl.float16 if PAIRS else qkv.dtype.element_ty
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    row = tl.program_id(0) // NUM_KV_HEADS
    if ORDERED:
        # Where programs queue for the device, the long rows must not be the last.
        row = tl.load(longest_first + row)
    split = tl.program_id(1)
    token = tl.load(query_starts + row).to(tl.int64)
    query_len = (tl.load(query_starts + row + 1) - token).to(tl.int32)
    # A row of padding has no token, and its length means nothing.
    history = tl.where(query_len > 0, tl.load(context_lens + row) - query_len, 0)
    begin = 0
    if WINDOWED:
        begin = tl.maximum(history + 1 - window, 0)
    first_tile = begin // BLOCK_N
    end_tile = tl.cdiv(history, BLOCK_N)
    num_parts = 1
    if SPLIT:
        share = tl.maximum(tl.cdiv(end_tile - first_tile, num_splits), 1)
        num_parts = tl.maximum(tl.cdiv(end_tile - first_tile, share), 1)
        if split >= num_parts:
            if QUERIES > 1:
                # The join knows no row lengths: mark the part as empty.
                wait_for_previous(OVERLAP)
                part, lane = split_parts(token, kv_head, split, num_splits, NUM_HEADS, GROUP, BLOCK_M)
                tl.store(stats + part * 2, NO_KEY, mask=lane < query_len * GROUP)
                tl.store(stats + part * 2 + 1, 0.0, mask=lane < query_len * GROUP)
            return
        first_tile += split * share
        end_tile = tl.minimum(first_tile + share, end_tile)

    table = block_tables + row.to(tl.int64) * table_stride
    dim = tl.arange(0, BLOCK_D)[None, :]
    dim_mask = dim < HEAD_DIM
    if SPLIT:
        # Earlier steps wrote the history, so its first tile, often the only one, is loaded before the wait. Only with
        # splits: where programs fill the device, its registers would cost occupancy.
        offset, seen = cache_offset(
            first_tile, table, kv_head, begin, history, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_N
        )
        mask = seen[:, None]
        if HEAD_DIM != BLOCK_D:
            mask = mask & dim_mask
        key = load_heads(keys, key_scales, offset, dim, mask, seen, HEAD_DIM, DTYPE)
        if PAIRS:
            value = load_pairs(values, offset, seen, HEAD_DIM, BLOCK_D)
        else:
            value = load_heads(values, value_scales, offset, dim, mask, seen, HEAD_DIM, DTYPE)
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
    cos, signed_sin = angles(rope, position, dim, rope_mask, HEAD_DIM)
    # The other dimension of each pair. (Written so that the compiler sees contiguous pieces; a `where` would hide them.)
    partner = (dim + HALF) % HEAD_DIM
    wait_for_previous(OVERLAP)
    if query_len == 0:
        return

    heads = qkv + token * qkv_stride
    query_head = heads + order * qkv_stride + (kv_head * GROUP + group_head) * HEAD_DIM
    query = rotate(query_head, dim, partner, query_mask, query_norm, cos, signed_sin, eps, HEAD_DIM, QK_NORM)
    query = query.to(qkv.dtype.element_ty)
    power = 1.0
    if PAIRS:
        query, power = as_float16(query)
        half = tl.zeros([BLOCK_M, BLOCK_D // 2], dtype=tl.float32)
        acc = (half, half)
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], NO_KEY, dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    if split == 0:
        new = tl.arange(0, NEW)
        new_mask = dim_mask
        new_cos = cos
        new_sin = signed_sin
        slot = tl.load(cache_index + token + new, mask=new < query_len, other=-1)[:, None]
        if QUERIES > 1:
            new_mask = dim_mask & (new < query_len)[:, None]
            new_cos, new_sin = angles(rope, history + new[:, None], dim, new_mask, HEAD_DIM)
        new_head = heads + new[:, None] * qkv_stride + (NUM_HEADS + kv_head) * HEAD_DIM
        new_key = rotate(new_head, dim, partner, new_mask, key_norm, new_cos, new_sin, eps, HEAD_DIM, QK_NORM)
        new_value = tl.load(new_head + NUM_KV_HEADS * HEAD_DIM + dim, mask=new_mask, other=0.0).to(tl.float32)
        key_scale = head_scale(tl.max(tl.abs(new_key), axis=1), keys)[:, None]
        value_scale = head_scale(tl.max(tl.abs(new_value), axis=1), values)[:, None]
        new_key = rounded(new_key, key_scale, keys)
        new_value = rounded(new_value, value_scale, values)
        target = slot * NUM_KV_HEADS + kv_head
        tl.store(keys + target * HEAD_DIM + dim, new_key, mask=new_mask & (slot >= 0))
        tl.store(values + target * HEAD_DIM + dim, new_value, mask=new_mask & (slot >= 0))
        if keys.dtype.element_ty == tl.int8:
            tl.store(key_scales + target, key_scale, mask=slot >= 0)
            tl.store(value_scales + target, value_scale, mask=slot >= 0)
        # Use the rounded values, as later steps will read them.
        new_key = (new_key.to(tl.float32) * key_scale).to(DTYPE)
        new_value = (new_value.to(tl.float32) * value_scale).to(DTYPE)
        if PAIRS:
            new_value = paired(new_value)
        if QUERIES > 1:
            new_seen = (new[None, :] <= order) & (new < query_len)[None, :]
            if WINDOWED:
                new_seen = new_seen & (new[None, :] > order - window)
            acc, row_max, row_sum = attend_tile(
                query, power, new_key, new_value, new_seen, acc, row_max, row_sum, scale, PAIRS, PRECISION
            )
        else:
            row_max = tl.sum(query.to(tl.float32) * power * new_key.to(tl.float32), axis=1) * scale
            row_sum += 1.0
            if PAIRS:
                acc = (acc[0] + new_value[0].to(tl.float32), acc[1] + new_value[1].to(tl.float32))
            else:
                acc += new_value.to(tl.float32)

    if SPLIT:
        shown = visible(first_tile, seen, position, window, BLOCK_N, EACH)
        acc, row_max, row_sum = attend_tile(
            query, power, key, value, shown, acc, row_max, row_sum, scale, PAIRS, PRECISION
        )
        first_tile += 1
    for tile in range(first_tile, end_tile):
        offset, seen = cache_offset(tile, table, kv_head, begin, history, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_N)
        mask = seen[:, None]
        if HEAD_DIM != BLOCK_D:
            mask = mask & dim_mask
        key = load_heads(keys, key_scales, offset, dim, mask, seen, HEAD_DIM, DTYPE)
        if PAIRS:
            value = load_pairs(values, offset, seen, HEAD_DIM, BLOCK_D)
        else:
            value = load_heads(values, value_scales, offset, dim, mask, seen, HEAD_DIM, DTYPE)
        shown = visible(tile, seen, position, window, BLOCK_N, EACH)
        acc, row_max, row_sum = attend_tile(
            query, power, key, value, shown, acc, row_max, row_sum, scale, PAIRS, PRECISION
        )

    if PAIRS:
        acc = tl.interleave(acc[0], acc[1])
    if SPLIT and QUERIES > 1:
        part, lane = split_parts(token, kv_head, split, num_splits, NUM_HEADS, GROUP, BLOCK_M)
        tl.store(partial + part[:, None] * HEAD_DIM + dim, acc, mask=query_mask)
        tl.store(stats + part * 2, row_max, mask=lane < num_lanes)
        tl.store(stats + part * 2 + 1, row_sum, mask=lane < num_lanes)
    else:
        result = out + (token * NUM_HEADS + kv_head * GROUP) * HEAD_DIM
        acc = acc / row_sum[:, None]
        if num_parts == 1:
            target = (order * NUM_HEADS + group_head) * HEAD_DIM + dim
            tl.store(result + target, acc.to(out.dtype.element_ty), mask=query_mask)
        else:
            first_part = tl.program_id(0).to(tl.int64) * num_splits
            part = (first_part + split) * GROUP
            lane = tl.arange(0, BLOCK_M)
            tl.store(partial + (part + packed) * HEAD_DIM + dim, acc, mask=query_mask)
            tl.store(stats + part + lane, row_max + tl.log2(row_sum), mask=lane < GROUP)
            # All threads' stores come before the one that announces them.
            tl.debug_barrier()
            arrived = tl.atomic_add(arrivals + tl.program_id(0), 1, sem="acq_rel")
            if arrived == num_parts - 1:
                tl.store(arrivals + tl.program_id(0), 0)
                join(partial, stats, result, first_part, num_parts, GROUP, HEAD_DIM, JOIN_COLS, JOIN_PARTS)


def decode_attention(
    qkv: Tensor,
    batch: Batch,
    cache: LayerCache,
    spec: AttentionSpec,
    *,
    plan: DecodePlan,
    arrivals: Tensor,
    overlap: bool,
) -> Tensor:
    """``Ops.rope_attention`` of rows with up to ``plan.queries`` query tokens; rows of padding have none.

    Args:
        qkv: [T, (H + 2 G) * D].
        batch: rows and block tables.
        cache: the layer's keys and values.
        spec: the layer's attention, without a soft cap.
        plan: the tile of each program, the query tokens that it holds, and the most parts of a history.
        arrivals: at least R * G int32 zeros, left as zeros; no other stream may use them meanwhile.
        overlap: start before the previous kernel has ended.
    """
    tokens = qkv.shape[0]
    block_size, num_kv_heads, head_dim = cache.keys.shape[1:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    group = num_heads // num_kv_heads
    rows = batch.context_lens.shape[0]
    tile, num_splits = plan.tile, plan.num_splits
    out = torch.empty((tokens, num_heads * head_dim), dtype=qkv.dtype, device=qkv.device)
    partial, stats = out, out
    joined = num_splits > 1 and plan.queries > 1
    if num_splits > 1:
        lanes = tokens if joined else rows
        partial = torch.empty((lanes, num_heads, num_splits, head_dim), dtype=torch.float32, device=qkv.device)
        stats = torch.empty((lanes, num_heads, num_splits, 2), dtype=torch.float32, device=qkv.device)
    # An unused argument must still be a tensor.
    query_norm, key_norm = spec.norms if spec.norms is not None else (qkv, qkv)
    key_scales, value_scales = cache.scales if cache.scales is not None else (qkv, qkv)
    ordered = batch.longest_first is not None and num_splits == 1
    join_cols = triton.next_power_of_2(group * head_dim)
    _decode_attention_kernel[(rows * num_kv_heads, num_splits)](
        qkv,
        cache.keys,
        cache.values,
        key_scales,
        value_scales,
        out,
        partial,
        stats,
        arrivals,
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
        spec.window if spec.window is not None else 0,
        spec.scale * _LOG2_E,
        spec.eps,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        BLOCK_SIZE=block_size,
        QUERIES=plan.queries,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        NEW=1 if plan.queries == 1 else MAX_QUERIES,
        JOIN_COLS=join_cols,
        JOIN_PARTS=max(1, min(8, 2048 // join_cols)),
        SPLIT=num_splits > 1,
        WINDOWED=spec.window is not None,
        PAIRS=pairs(cache.keys, qkv),
        QK_NORM=spec.norms is not None,
        ORDERED=ordered,
        OVERLAP=overlap,
        PRECISION="ieee" if qkv.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **launch_options(overlap),
    )
    if joined:
        join_splits(partial, stats, out, batch.query_starts, rows, max(batch.query_lens_host), overlap=overlap)
    return out
