"""A decode step's attention in one launch: (QK-norm,) rotation, cache write and attention of one query token a row.

A program owns one row, one key/value head and a part of the row's history. It rotates the queries of the heads that
share the key/value head, and attends to its part through the block table, with the online softmax of FlashAttention-2
(Dao 2023) in base 2. The program of the first part also rotates the token's own key, writes key and value to the cache,
and begins its softmax with them. Where a history has several parts (Flash-Decoding, Dao et al. 2023), the program that
ends last joins them. A part without keys costs one short program: the parts are counted by the bounds of a CUDA graph's
bucket, the keys by the row.

Not here: longer queries (`attention.py`, `rope.py`), and how many parts (`attention_plan.py`).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.batch import Batch
from draftline.kernels.triton.attention_plan import DecodePlan
from draftline.kernels.triton.cache import head_scale, load_heads, rounded
from draftline.kernels.triton.overlap import launch_options, wait_for_previous

_LOG2_E = math.log2(math.e)

# A finite stand-in for minus infinity: a row that has seen no key yet keeps this maximum, and differences stay numbers.
_NO_KEY = tl.constexpr(-1.0e30)


@triton.jit
def _cache_offset(
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
    """[BLOCK_N] offsets into the cache of a tile's keys, and which of them are within ``[begin, end)``."""
    position = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    seen = (position >= begin) & (position < end)
    block = tl.load(table + position // BLOCK_SIZE, mask=seen, other=0)
    slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    return (slot * NUM_KV_HEADS + kv_head) * HEAD_DIM, seen


@triton.jit
def _attend_tile(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    seen: tl.tensor,
    acc: tl.tensor,
    row_max: tl.tensor,
    row_sum: tl.tensor,
    scale: tl.tensor,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    score = tl.where(seen[None, :], score, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(score, axis=1) * scale)
    weight = tl.exp2(score * scale - new_max[:, None])
    rescale = tl.exp2(row_max - new_max)
    row_sum = row_sum * rescale + tl.sum(weight, axis=1)
    acc = tl.dot(weight.to(value.dtype), value, acc * rescale[:, None], input_precision=PRECISION)
    return acc, new_max, row_sum


@triton.jit
def _rotate(
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
def _join(
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
    largest = tl.full([COLS], _NO_KEY, tl.float32)
    for base in range(0, num_parts, PARTS):
        part = base + tl.arange(0, PARTS)[:, None]
        mask = (part < num_parts) & col_mask[None, :]
        row = first_part + part
        # Not through the L1 cache, which need not have what other multiprocessors stored.
        log_sum = tl.load(
            log_sums + row * GROUP + (col // HEAD_DIM)[None, :], mask=mask, other=_NO_KEY, cache_modifier=".cg"
        )
        result = tl.load(partial + row * (GROUP * HEAD_DIM) + col[None, :], mask=mask, other=0.0, cache_modifier=".cg")
        new_largest = tl.maximum(largest, tl.max(log_sum, axis=0))
        weight = tl.exp2(log_sum - new_largest[None, :])
        rescale = tl.exp2(largest - new_largest)
        acc = acc * rescale + tl.sum(result * weight, axis=0)
        total = total * rescale + tl.sum(weight, axis=0)
        largest = new_largest
    tl.store(out + col, (acc / total).to(out.dtype.element_ty), mask=col_mask)


@triton.jit(do_not_specialize=["num_splits", "window", "qkv_stride", "table_stride"])
def _decode_attention_kernel(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    log_sums: tl.tensor,
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    JOIN_COLS: tl.constexpr,
    JOIN_PARTS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOWED: tl.constexpr,
    QK_NORM: tl.constexpr,
    ORDERED: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    HALF: tl.constexpr = HEAD_DIM // 2
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    row = tl.program_id(0) // NUM_KV_HEADS
    if ORDERED:
        # Where programs queue for the device, the long rows must not be the last.
        row = tl.load(longest_first + row)
    split = tl.program_id(1)
    token = tl.load(query_starts + row).to(tl.int64)
    used = tl.load(query_starts + row + 1) > token
    # A row of padding has no token, and its length means nothing.
    history = tl.where(used, tl.load(context_lens + row) - 1, 0)
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
            return
        first_tile += split * share
        end_tile = tl.minimum(first_tile + share, end_tile)

    table = block_tables + row.to(tl.int64) * table_stride
    dim = tl.arange(0, BLOCK_D)[None, :]
    dim_mask = dim < HEAD_DIM
    if SPLIT:
        # The history was written by earlier steps: its first tile, often the only one, need not wait for this step's
        # kernels. It takes registers, which would cost occupancy where programs fill the device anyway.
        offset, seen = _cache_offset(
            first_tile, table, kv_head, begin, history, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_N
        )
        mask = seen[:, None]
        if HEAD_DIM != BLOCK_D:
            mask = mask & dim_mask
        key = load_heads(keys, key_scales, offset, dim, mask, seen, HEAD_DIM, qkv.dtype.element_ty)
        value = load_heads(values, value_scales, offset, dim, mask, seen, HEAD_DIM, qkv.dtype.element_ty)
    # The token's position is the length of the history.
    angles = rope + history.to(tl.int64) * HEAD_DIM + dim % HALF
    cos = tl.load(angles, mask=dim_mask, other=0.0)
    sin = tl.load(angles + HALF, mask=dim_mask, other=0.0)
    signed_sin = tl.where(dim < HALF, -sin, sin)
    partner = tl.where(dim < HALF, dim + HALF, dim - HALF)
    wait_for_previous(OVERLAP)
    if used == 0:
        return

    packed = tl.arange(0, BLOCK_M)[:, None]
    query_mask = (packed < GROUP) & dim_mask
    heads = qkv + token * qkv_stride
    query_head = heads + (kv_head * GROUP + packed) * HEAD_DIM
    query = _rotate(query_head, dim, partner, query_mask, query_norm, cos, signed_sin, eps, HEAD_DIM, QK_NORM)
    query = query.to(qkv.dtype.element_ty)

    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], _NO_KEY, dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    if split == 0:
        key_head = heads + (NUM_HEADS + kv_head) * HEAD_DIM + tl.zeros([1, 1], tl.int32)
        new_key = _rotate(key_head, dim, partner, dim_mask, key_norm, cos, signed_sin, eps, HEAD_DIM, QK_NORM)
        new_value = tl.load(heads + (NUM_HEADS + NUM_KV_HEADS + kv_head) * HEAD_DIM + dim, mask=dim_mask, other=0.0)
        new_value = new_value.to(tl.float32)
        key_scale = head_scale(tl.max(tl.abs(new_key), axis=1), keys)
        value_scale = head_scale(tl.max(tl.abs(new_value), axis=1), values)
        new_key = rounded(new_key, key_scale[:, None], keys)
        new_value = rounded(new_value, value_scale[:, None], values)
        slot = tl.load(cache_index + token)
        if slot >= 0:
            place = slot * NUM_KV_HEADS + kv_head
            tl.store(keys + place * HEAD_DIM + dim, new_key, mask=dim_mask)
            tl.store(values + place * HEAD_DIM + dim, new_value, mask=dim_mask)
            if keys.dtype.element_ty == tl.int8:
                tl.store(key_scales + place + tl.arange(0, 1), key_scale)
                tl.store(value_scales + place + tl.arange(0, 1), value_scale)
        # As later steps will read them.
        new_key = (new_key.to(tl.float32) * key_scale[:, None]).to(qkv.dtype.element_ty)
        new_value = (new_value.to(tl.float32) * value_scale[:, None]).to(qkv.dtype.element_ty)
        row_max = tl.sum(query.to(tl.float32) * new_key.to(tl.float32), axis=1) * scale
        row_sum += 1.0
        acc += new_value.to(tl.float32)

    if SPLIT:
        acc, row_max, row_sum = _attend_tile(query, key, value, seen, acc, row_max, row_sum, scale, PRECISION)
        first_tile += 1
    for tile in range(first_tile, end_tile):
        offset, seen = _cache_offset(tile, table, kv_head, begin, history, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_N)
        mask = seen[:, None]
        if HEAD_DIM != BLOCK_D:
            mask = mask & dim_mask
        key = load_heads(keys, key_scales, offset, dim, mask, seen, HEAD_DIM, qkv.dtype.element_ty)
        value = load_heads(values, value_scales, offset, dim, mask, seen, HEAD_DIM, qkv.dtype.element_ty)
        acc, row_max, row_sum = _attend_tile(query, key, value, seen, acc, row_max, row_sum, scale, PRECISION)

    result = out + (token * NUM_HEADS + kv_head * GROUP) * HEAD_DIM
    acc = acc / row_sum[:, None]
    if num_parts == 1:
        tl.store(result + packed * HEAD_DIM + dim, acc.to(out.dtype.element_ty), mask=query_mask)
    else:
        first_part = tl.program_id(0).to(tl.int64) * num_splits
        part = (first_part + split) * GROUP
        tl.store(partial + (part + packed) * HEAD_DIM + dim, acc, mask=query_mask)
        lane = tl.arange(0, BLOCK_M)
        tl.store(log_sums + part + lane, row_max + tl.log2(row_sum), mask=lane < GROUP)
        # All threads' stores come before the one that announces them.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals + tl.program_id(0), 1, sem="acq_rel")
        if arrived == num_parts - 1:
            tl.store(arrivals + tl.program_id(0), 0)
            _join(partial, log_sums, result, first_part, num_parts, GROUP, HEAD_DIM, JOIN_COLS, JOIN_PARTS)


def decode_attention(
    qkv: Tensor,
    batch: Batch,
    rope: Tensor,
    keys: Tensor,
    values: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    *,
    scale: float,
    window: int | None,
    plan: DecodePlan,
    arrivals: Tensor,
    overlap: bool,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """See ``Ops.rope_attention``; every row has one query token or, in padding, none.

    Args:
        qkv: [T, (H + 2 G) * D].
        batch: rows and block tables.
        rope: [max_positions, 2, D / 2].
        keys: [num_blocks, block_size, G, D], contiguous.
        values: the same for the values.
        norms: the [D] RMSNorm weights of queries and keys, or None.
        eps: RMSNorm's epsilon.
        scale: multiplies the scores.
        window: positions that a query sees, itself included; None for all.
        plan: the tile of each program, and the most parts of a history.
        arrivals: at least R * G int32 zeros, left as zeros; no other stream may use them meanwhile.
        overlap: start before the previous kernel has ended.
        scales: of INT8 keys and values, [num_blocks, block_size, G] float32.
    """
    tokens = qkv.shape[0]
    block_size, num_kv_heads, head_dim = keys.shape[1:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    group = num_heads // num_kv_heads
    rows = batch.context_lens.shape[0]
    tile, num_splits = plan.tile, plan.num_splits
    out = torch.empty((tokens, num_heads * head_dim), dtype=qkv.dtype, device=qkv.device)
    partial, log_sums = out, out
    if num_splits > 1:
        parts = rows * num_kv_heads * num_splits * group
        partial = torch.empty((parts, head_dim), dtype=torch.float32, device=qkv.device)
        log_sums = torch.empty(parts, dtype=torch.float32, device=qkv.device)
    query_norm, key_norm = norms if norms is not None else (qkv, qkv)
    key_scales, value_scales = scales if scales is not None else (qkv, qkv)
    ordered = batch.longest_first is not None and num_splits == 1
    join_cols = triton.next_power_of_2(group * head_dim)
    _decode_attention_kernel[(rows * num_kv_heads, num_splits)](
        qkv,
        keys,
        values,
        key_scales,
        value_scales,
        out,
        partial,
        log_sums,
        arrivals,
        batch.cache_index,
        batch.query_starts,
        batch.context_lens,
        batch.block_tables,
        batch.longest_first if ordered else batch.context_lens,
        rope,
        query_norm,
        key_norm,
        qkv.stride(0),
        batch.block_tables.stride(0),
        num_splits,
        window if window is not None else 0,
        scale * _LOG2_E,
        eps,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        BLOCK_SIZE=block_size,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        JOIN_COLS=join_cols,
        JOIN_PARTS=max(1, min(8, 2048 // join_cols)),
        SPLIT=num_splits > 1,
        WINDOWED=window is not None,
        QK_NORM=norms is not None,
        ORDERED=ordered,
        OVERLAP=overlap,
        PRECISION="ieee" if qkv.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **launch_options(overlap),
    )
    return out
