"""Ragged paged attention: one kernel for decodes, verifies and prompt chunks.

A program owns one tile of query rows and one key/value head. The tile packs the query tokens of one sequence with all
query heads that share the key/value head (grouped-query attention), so that each key is read once for all of them. It
runs over the sequence's keys through the block table with the online softmax of FlashAttention-2 (Dao 2023), in base 2
with float32 accumulators. Where there are few query tiles, the history is split between programs and a second kernel
joins their parts (Flash-Decoding, Dao et al. 2023). A prompt chunk reads its history through the block table, and its own
keys from the activations, where they are contiguous.

Not here: tiles and number of splits (`plan.py`), the loop over the keys (`online_softmax.py`), writing the cache
(`rope.py`).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.triton.attention.fp8_cache import as_float16, pairs
from draftline.kernels.triton.attention.join import join_splits
from draftline.kernels.triton.attention.online_softmax import NO_KEY, attend_cache, attend_own
from draftline.kernels.triton.attention.plan import AttentionLaunch, AttentionShape, plan_attention
from draftline.kernels.triton.overlap import launch_options, wait_for_previous

_LOG2_E = math.log2(math.e)


@triton.jit(
    do_not_specialize=[
        "query_stride", "table_stride", "num_rows", "num_tiles", "tiles_per_row", "num_splits", "min_query", "max_query",
        "window",
    ]
)  # fmt: skip
def _attention_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    own: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    stats: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    query_stride: int,
    table_stride: int,
    num_rows: int,
    num_tiles: int,
    tiles_per_row: int,
    num_splits: int,
    min_query: int,
    max_query: int,
    window: int,
    scale: float,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SEARCH: tl.constexpr,
    OWN: tl.constexpr,
    PAIRS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    OVERLAP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    wait_for_previous(OVERLAP)
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    # Heads run fastest: programs that run together read neighbouring heads of the same tokens.
    pid = tl.program_id(0)
    kv_head = pid % NUM_KV_HEADS
    tile_id = pid // NUM_KV_HEADS
    if SEARCH:
        # Later tiles of a chunk see more keys: starting them first evens out the end of the launch.
        tile_id = num_tiles - 1 - tile_id
        # The row's tiles start at query_starts[row] // QUERIES + row, which grows with row: count the starts passed.
        passed = 0
        for base in range(0, num_rows, 256):
            candidate = base + tl.arange(0, 256)
            start = tl.load(query_starts + candidate, mask=candidate < num_rows, other=0)
            reached = (start // QUERIES + candidate <= tile_id) & (candidate < num_rows)
            passed += tl.sum(reached.to(tl.int32), axis=0)
        row = passed - 1
        row_start = tl.load(query_starts + row)
        row_tile = tile_id - (row_start // QUERIES + row)
    else:
        row = tile_id // tiles_per_row
        row_start = tl.load(query_starts + row)
        row_tile = tile_id % tiles_per_row
    query_len = tl.load(query_starts + row + 1) - row_start
    # Loaded together with the starts: one wait for all.
    context_len = tl.load(context_lens + row)
    if (query_len < min_query) | (query_len > max_query) | (row_tile * QUERIES >= query_len):
        return

    history = context_len - query_len
    packed = tl.arange(0, BLOCK_M)
    row_query = row_tile * QUERIES + packed // GROUP
    query_mask = row_query < query_len
    if BLOCK_M != QUERIES * GROUP:
        query_mask = query_mask & (packed < QUERIES * GROUP)
    query_position = history + row_query
    token = (row_start + row_query).to(tl.int64)
    head = kv_head * GROUP + packed % GROUP
    # [BLOCK_M] rows of the [T * H, D] results.
    flat = token * NUM_HEADS + head
    dim = tl.arange(0, BLOCK_D)[None, :]
    tensor_mask = query_mask[:, None]
    if HEAD_DIM != BLOCK_D:
        tensor_mask = tensor_mask & (dim < HEAD_DIM)
    source = token * query_stride + head * HEAD_DIM
    query = tl.load(queries + source[:, None] + dim, mask=tensor_mask, other=0.0)
    power = None
    if PAIRS:
        query, power = as_float16(query)

    # The keys that any query of the tile sees: [begin, end).
    first_query = history + row_tile * QUERIES
    end = tl.minimum(first_query + QUERIES, context_len)
    begin_tile = 0
    if WINDOWED:
        begin_tile = tl.maximum(first_query - window + 1, 0) // BLOCK_N
    end_tile = tl.cdiv(end, BLOCK_N)
    split = tl.program_id(1)
    if SPLIT:
        share = tl.cdiv(end_tile - begin_tile, num_splits)
        begin_tile += split * share
        end_tile = tl.minimum(begin_tile + share, end_tile)

    if PAIRS:
        half = tl.zeros([BLOCK_M, BLOCK_D // 2], dtype=tl.float32)
        acc = (half, half)
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], NO_KEY, dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    table = block_tables + tl.cast(row, tl.int64) * table_stride
    if OWN:
        # The history through the block table, then the row's own keys, whose positions count from its first token.
        if history > 0:
            whole_end = 0 if WINDOWED else history // BLOCK_N
            if not WINDOWED:
                acc, row_max, row_sum = attend_cache(
                    query, power, acc, row_max, row_sum, keys, values, key_scales, value_scales, table, kv_head, query_position,
                    0, whole_end, history, window, scale,
                    NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N, WINDOWED, False, PAIRS, SOFT_CAP, PRECISION,
                )  # fmt: skip
            acc, row_max, row_sum = attend_cache(
                query, power, acc, row_max, row_sum, keys, values, key_scales, value_scales, table, kv_head, query_position,
                tl.maximum(begin_tile, whole_end), tl.cdiv(history, BLOCK_N), history, window, scale,
                NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N, WINDOWED, True, PAIRS, SOFT_CAP, PRECISION,
            )  # fmt: skip
        first_query = row_tile * QUERIES
        end = tl.minimum(first_query + QUERIES, query_len)
        end_tile = tl.cdiv(end, BLOCK_N)
        key_column = (NUM_HEADS + kv_head) * HEAD_DIM
        value_column = key_column + NUM_KV_HEADS * HEAD_DIM
        # Tiles between these are seen whole by every query: no mask.
        whole_begin = 0
        if WINDOWED:
            whole_begin = tl.minimum(tl.cdiv(tl.maximum(end - window, 0), BLOCK_N), end_tile)
            acc, row_max, row_sum = attend_own(
                query, acc, row_max, row_sum, own, row_start, key_column, value_column, row_query,
                tl.maximum(first_query - window + 1, 0) // BLOCK_N, whole_begin, query_len, window, scale,
                BLOCK_N, WINDOWED, True, SOFT_CAP, PRECISION,
            )  # fmt: skip
        whole_end = tl.minimum(tl.maximum((first_query + 1) // BLOCK_N, whole_begin), end_tile)
        acc, row_max, row_sum = attend_own(
            query, acc, row_max, row_sum, own, row_start, key_column, value_column, row_query,
            whole_begin, whole_end, query_len, window, scale,
            BLOCK_N, WINDOWED, False, SOFT_CAP, PRECISION,
        )  # fmt: skip
        acc, row_max, row_sum = attend_own(
            query, acc, row_max, row_sum, own, row_start, key_column, value_column, row_query,
            whole_end, end_tile, query_len, window, scale,
            BLOCK_N, WINDOWED, True, SOFT_CAP, PRECISION,
        )  # fmt: skip
    else:
        acc, row_max, row_sum = attend_cache(
            query, power, acc, row_max, row_sum, keys, values, key_scales, value_scales, table, kv_head, query_position,
            begin_tile, end_tile, end, window, scale,
            NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N, WINDOWED, True, PAIRS, SOFT_CAP, PRECISION,
        )  # fmt: skip

    if PAIRS:
        acc = tl.interleave(acc[0], acc[1])
    if SPLIT:
        # A split without keys stores a sum of zero, so the reduction needs no row lengths.
        part = flat * num_splits + split
        tl.store(partial + part[:, None] * HEAD_DIM + dim, acc, mask=tensor_mask & (row_sum > 0.0)[:, None])
        tl.store(stats + part * 2, row_max, mask=query_mask)
        tl.store(stats + part * 2 + 1, row_sum, mask=query_mask)
    else:
        result = acc / row_sum[:, None]
        tl.store(out + flat[:, None] * HEAD_DIM + dim, result.to(out.dtype.element_ty), mask=tensor_mask)


def attention(
    q: Tensor,
    batch: Batch,
    cache: LayerCache,
    spec: AttentionSpec,
    *,
    num_sms: int,
    own: Tensor | None = None,
    overlap: bool = False,
) -> Tensor:
    """``Ops.attention`` by Triton kernels. Query and context lengths known to the host may be upper bounds.

    Args:
        q: [T, H, D], each token's heads contiguous.
        batch: rows and block tables.
        cache: the layer's keys and values.
        spec: the layer's attention.
        num_sms: the device's multiprocessors, which the splits are to fill.
        own: [T, (H + 2 G) * D], the tokens' rotated queries, keys and values. Prompt chunks read their own keys here,
            faster than through the block table. Without it all keys are read from the cache.
        overlap: start before the previous kernel has ended.
    """
    num_kv_heads = cache.keys.shape[2]
    shape = AttentionShape(
        q.shape[1] // num_kv_heads,
        num_kv_heads,
        q.shape[2],
        cache.keys.element_size(),
        num_sms,
        cache.keys.dtype == torch.float8_e4m3fn,
    )
    out = torch.empty((q.shape[0], q.shape[1] * q.shape[2]), dtype=q.dtype, device=q.device)
    for launch in plan_attention(shape, batch.query_lens_host, batch.context_lens_host, q.shape[0]):
        run_launch(launch, q, batch, cache, spec, out, own=own, overlap=overlap)
    return out


def run_launch(
    launch: AttentionLaunch,
    q: Tensor,
    batch: Batch,
    cache: LayerCache,
    spec: AttentionSpec,
    out: Tensor,
    *,
    own: Tensor | None = None,
    overlap: bool = False,
) -> None:
    """Run one launch of a plan (and its reduction, where the plan splits), writing its rows of ``out``."""
    tokens, num_heads, head_dim = q.shape
    block_size, num_kv_heads = cache.keys.shape[1:3]
    tile, splits = launch.tile, launch.num_splits
    rows = len(batch.query_lens_host)
    block_d = triton.next_power_of_2(head_dim)
    partial, stats = out, out
    if splits > 1:
        partial = torch.empty((tokens, num_heads, splits, head_dim), dtype=torch.float32, device=q.device)
        stats = torch.empty((tokens, num_heads, splits, 2), dtype=torch.float32, device=q.device)
    # An unused argument must still be a tensor.
    key_scales, value_scales = cache.scales if cache.scales is not None else (q, q)
    chunks = None
    if own is not None and launch.reads_own:
        chunks = TensorDescriptor(own, list(own.shape), list(own.stride()), [tile.block_n, block_d])
    _attention_kernel[(launch.num_tiles * num_kv_heads, splits)](
        q,
        cache.keys,
        cache.values,
        key_scales,
        value_scales,
        chunks,
        out,
        partial,
        stats,
        batch.query_starts,
        batch.context_lens,
        batch.block_tables,
        q.stride(0),
        batch.block_tables.stride(0),
        rows,
        launch.num_tiles,
        launch.tiles_per_row,
        splits,
        launch.min_query,
        launch.max_query,
        spec.window if spec.window is not None else 0,
        spec.scale * _LOG2_E,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_SIZE=block_size,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        SEARCH=launch.tiles_per_row == 0,
        OWN=chunks is not None,
        # Not for chunks: the products bound them, and their own keys have the activations' type.
        PAIRS=chunks is None and pairs(cache.keys, q),
        SPLIT=splits > 1,
        WINDOWED=spec.window is not None,
        SOFT_CAP=spec.soft_cap,
        OVERLAP=overlap,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **launch_options(overlap),
    )
    if splits > 1:
        join_splits(partial, stats, out, batch.query_starts, rows, launch.max_query, overlap=overlap)
