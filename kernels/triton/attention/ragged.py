"""Ragged paged attention: one kernel for decodes, verifies and prompt chunks.

A program owns one tile of query rows and one key/value head. The tile packs the query tokens of one sequence with all
query heads that share the key/value head (grouped-query attention), so that each key is read once for all of them. It
runs over the sequence's keys through the block table (`online_softmax.py`). Where there are few query tiles, the history's
tiles are shared out between programs, and a second kernel joins them. A prompt chunk reads its history through the
block table, and its own keys from the activations, where they are contiguous.

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
from draftline.kernels.triton.attention.fp8_cache import MAX_PAIR_ROWS, as_float16, multiplies_float16
from draftline.kernels.triton.attention.join import join_tiles, store_tile
from draftline.kernels.triton.attention.online_softmax import attend_cache, attend_own, cached_tile, divisor, no_keys
from draftline.kernels.triton.attention.plan import AttentionLaunch, AttentionShape, plan_attention
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.overlap import launch_options, wait_for_previous
from draftline.kernels.triton.rows import empty_rows

_LOG2_E = math.log2(math.e)


@triton.jit(
    do_not_specialize=[
        "query_stride", "table_stride", "num_rows", "num_tiles", "tiles_per_row", "num_splits", "max_tiles", "min_query", "max_query",
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
    longest_first: tl.tensor,
    query_stride: int,
    table_stride: int,
    num_rows: int,
    num_tiles: int,
    tiles_per_row: int,
    num_splits: int,
    max_tiles: int,
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
    ORDERED: tl.constexpr,
    OWN: tl.constexpr,
    FLOAT8: tl.constexpr,
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
        if ORDERED:
            # Where programs queue for the device, the long rows must not be the last.
            row = tl.load(longest_first + row)
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
    if FLOAT8:
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
        # Tiles are numbered from the first that any query of the row sees.
        first_tile = 0
        if WINDOWED:
            first_tile = tl.maximum(history - window + 1, 0) // BLOCK_N
        num_tiles_row = tl.cdiv(context_len, BLOCK_N) - first_tile
        share = tl.cdiv(num_tiles_row, num_splits)

    table = block_tables + tl.cast(row, tl.int64) * table_stride
    if SPLIT:
        for index in range(split * share, tl.minimum(split * share + share, num_tiles_row)):
            acc, row_max, row_sum = cached_tile(
                first_tile + index, query, power, keys, values, key_scales, value_scales, table, kv_head, query_position,
                end, window, scale,
                NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N, WINDOWED, True, PAIRS, SOFT_CAP, PRECISION,
            )  # fmt: skip
            target = flat * max_tiles + index
            store_tile(partial, stats, target, acc, row_max, row_sum, query_mask, HEAD_DIM, PAIRS)
        return
    total, total_max, total_sum = no_keys(BLOCK_M, BLOCK_D, PAIRS)
    if OWN:
        # The history through the block table, and the tile that it shares with the row's first own keys; then own keys.
        own_tile = tl.minimum(tl.cdiv(history, BLOCK_N), end_tile)
        if begin_tile < own_tile:
            whole_end = begin_tile if WINDOWED else history // BLOCK_N
            if not WINDOWED:
                total, total_max, total_sum = attend_cache(
                    query, power, total, total_max, total_sum,
                    keys, values, key_scales, value_scales, table, kv_head, query_position,
                    0, whole_end, end, window, scale,
                    NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N,
                    WINDOWED, False, PAIRS, SOFT_CAP, PRECISION,
                )  # fmt: skip
            total, total_max, total_sum = attend_cache(
                query, power, total, total_max, total_sum,
                keys, values, key_scales, value_scales, table, kv_head, query_position,
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
            own, row_start, key_column, value_column, query_position, history,
            own_tile, partial_tile, whole_begin, whole_end, context_len, window, scale,
            BLOCK_N, WINDOWED, False, SOFT_CAP, PRECISION,
        )  # fmt: skip
        if partial_tile < end_tile:
            total, total_max, total_sum = attend_own(
                query, power, total, total_max, total_sum,
                own, row_start, key_column, value_column, query_position, history,
                partial_tile, end_tile, whole_begin, whole_end, context_len, window, scale,
                BLOCK_N, WINDOWED, True, SOFT_CAP, PRECISION,
            )  # fmt: skip
    else:
        total, total_max, total_sum = attend_cache(
            query, power, total, total_max, total_sum,
            keys, values, key_scales, value_scales, table, kv_head, query_position,
            begin_tile, end_tile, end, window, scale,
            NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N,
            WINDOWED, True, PAIRS, SOFT_CAP, PRECISION,
        )  # fmt: skip

    if PAIRS:
        total = tl.interleave(total[0], total[1])
    result = total / divisor(total_sum)
    tl.store(out + flat[:, None] * HEAD_DIM + dim, result.to(out.dtype.element_ty), mask=tensor_mask)


def attention(
    q: Tensor,
    batch: Batch,
    cache: LayerCache,
    spec: AttentionSpec,
    *,
    limits: DeviceLimits,
    own: Tensor | None = None,
    overlap: bool = False,
) -> Tensor:
    """``Ops.attention`` by Triton kernels. Query and context lengths known to the host may be upper bounds.

    Args:
        q: [T, H, D], each token's heads contiguous.
        batch: rows and block tables.
        cache: the layer's keys and values.
        spec: the layer's attention.
        limits: the device's: splits fill its multiprocessors, and tiles fit its shared memory.
        own: [T, (H + 2 G) * D], the tokens' rotated queries, keys and values. Prompt chunks read their own keys here,
            faster than through the block table. Without it all keys are read from the cache.
        overlap: start before the previous kernel has ended.
    """
    num_kv_heads = cache.keys.shape[2]
    shape = AttentionShape.of(q.shape[1] // num_kv_heads, q, cache, limits)
    out = empty_rows(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
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
    partial, stats, tiles = out, out, launch.max_tiles
    if splits > 1:
        partial = torch.empty((tokens, num_heads, tiles, head_dim), dtype=torch.float32, device=q.device)
        stats = torch.empty((tokens, num_heads, tiles, 2), dtype=torch.float32, device=q.device)
    # An unused argument must still be a tensor.
    key_scales, value_scales = cache.scales if cache.scales is not None else (q, q)
    chunks = None
    if own is not None and launch.reads_own:
        chunks = TensorDescriptor(own, list(own.shape), list(own.stride()), [tile.block_n, block_d])
    ordered = batch.longest_first is not None and launch.tiles_per_row > 0 and splits == 1
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
        batch.longest_first if ordered else batch.context_lens,
        q.stride(0),
        batch.block_tables.stride(0),
        rows,
        launch.num_tiles,
        launch.tiles_per_row,
        splits,
        tiles,
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
        ORDERED=ordered,
        OWN=chunks is not None,
        FLOAT8=multiplies_float16(cache.keys, q),
        PAIRS=multiplies_float16(cache.keys, q) and tile.block_m <= MAX_PAIR_ROWS,
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
        window = spec.window if spec.window is not None else 0
        join_tiles(partial, stats, out, batch, rows, launch.max_query, window, tile.block_n, overlap=overlap)
