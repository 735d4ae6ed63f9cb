"""Ragged paged attention: prompt chunks, and the decodes and verifies beside them.

A program owns one tile of queries and one key/value head (`query_tiles.py`). It runs over the sequence's keys through the block
table (`online_softmax.py`). Where there are few tiles of short queries, their histories are shared out between programs, and a
second launch joins them. A prompt chunk reads its history through the block table, and its own keys from the activations,
where they are contiguous.

Few decodes share a launch with prompt chunks. Many have their own, with as many programs on a multiprocessor as fit. Where launches
overlap, the two run at the same time: chunks are bound by arithmetic, and decodes by the memory.

Not here: batches of decodes and verifies alone (`decode.py`), tiles and number of splits (`plan.py`), writing the cache (`rope.py`).
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
from draftline.kernels.triton.attention.fp8_cache import MAX_PAIR_ROWS, multiplies_float16
from draftline.kernels.triton.attention.join import TileStates, join_tiles
from draftline.kernels.triton.attention.plan import AttentionLaunch, AttentionShape, plan_attention
from draftline.kernels.triton.attention.query_tiles import (
    attend_long,
    attend_short,
    count_tiles,
    find_tile,
    search_tile,
)
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.overlap import ALONE, FIRST, SECOND, begin, end, launch_options
from draftline.kernels.triton.rows import empty_rows

_LOG2_E = math.log2(math.e)


@triton.jit(
    do_not_specialize=[
        "table_stride", "num_rows", "long_tiles", "tiles_per_row", "num_splits", "tile_stride", "max_short", "window",
    ]
)  # fmt: skip
def _attention_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    own: tl.tensor,
    rope: tl.tensor,
    query_norm: tl.tensor,
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
    long_tiles: int,
    tiles_per_row: int,
    num_splits: int,
    tile_stride: int,
    max_short: int,
    window: int,
    scale: float,
    eps: float,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SHORT_M: tl.constexpr,
    LONG_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROTATE: tl.constexpr,
    QK_NORM: tl.constexpr,
    ORDERED: tl.constexpr,
    OWN: tl.constexpr,
    FLOAT8: tl.constexpr,
    SHORT_PAIRS: tl.constexpr,
    LONG_PAIRS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    IN_TURN: tl.constexpr,
    OVERLAP: tl.constexpr,
    PLACE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """SHORT_M and LONG_M are the heights of the two kinds of tiles, 0 where there is no row of the kind.

    IN_TURN, a program takes several tiles of chunks, and there are no others.
    """
    # Heads run fastest: programs that run together read neighbouring heads of the same tokens. Chunks take longest, and start first, the
    # later tiles of each, which see more keys, before the others. That evens out the end of the launch.
    rotation = (rope, query_norm, eps)
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    tile_id = tl.program_id(0) // NUM_KV_HEADS
    if LONG_M > 0:
        begin(PLACE, OVERLAP)
    if IN_TURN:
        tiles = count_tiles(query_starts, num_rows, max_short, LONG_M // GROUP)
        for item in range(tl.program_id(0), tiles * NUM_KV_HEADS, tl.num_programs(0)):
            tile = tiles - 1 - item // NUM_KV_HEADS
            row, first = find_tile(tile, query_starts, num_rows, max_short, LONG_M // GROUP)
            attend_long(
                row, first, item % NUM_KV_HEADS, queries, rotation, keys, values, key_scales, value_scales, own, out,
                query_starts, context_lens, block_tables, query_stride, table_stride, max_short, window, scale,
                NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_D, BLOCK_SIZE, LONG_M, BLOCK_N, ROTATE, QK_NORM,
                OWN, FLOAT8, LONG_PAIRS, WINDOWED, SOFT_CAP, PRECISION,
            )  # fmt: skip
    elif LONG_M > 0:
        if tile_id < long_tiles:
            row, first = search_tile(long_tiles - 1 - tile_id, query_starts, num_rows, LONG_M // GROUP)
            attend_long(
                row, first, kv_head, queries, rotation, keys, values, key_scales, value_scales, own, out,
                query_starts, context_lens, block_tables, query_stride, table_stride, max_short, window, scale,
                NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_D, BLOCK_SIZE, LONG_M, BLOCK_N, ROTATE, QK_NORM,
                OWN, FLOAT8, LONG_PAIRS, WINDOWED, SOFT_CAP, PRECISION,
            )  # fmt: skip
    if SHORT_M > 0:
        if tile_id >= long_tiles:
            attend_short(
                tile_id - long_tiles, kv_head, queries, rotation, keys, values, key_scales, value_scales, out, partial, stats,
                query_starts, context_lens, block_tables, longest_first, query_stride, table_stride, num_rows, tiles_per_row,
                num_splits, tile_stride, max_short, window, scale,
                NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_D, BLOCK_SIZE, SHORT_M, BLOCK_N, ROTATE, QK_NORM,
                ORDERED, FLOAT8, SHORT_PAIRS, SPLIT, WINDOWED, SOFT_CAP, LONG_M == 0, PLACE, OVERLAP, PRECISION,
            )  # fmt: skip
    end(PLACE)


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
        own: [T, (H + 2 G) * D], the tokens' queries ``q``, and their rotated keys and values. Then the queries are normalised and
            rotated here, where each is read once, and prompt chunks read their own keys here, faster than through the block
            table. Without it queries are rotated already, and all keys are read from the cache.
        overlap: start before the previous kernel has ended.
    """
    num_kv_heads = cache.keys.shape[2]
    shape = AttentionShape.of(q.shape[1] // num_kv_heads, q, cache, limits)
    out = empty_rows(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
    launches = plan_attention(shape, batch.query_lens_host, batch.context_lens_host, q.shape[0])
    places = (FIRST, SECOND) if len(launches) == 2 and limits.overlaps else (ALONE, ALONE)
    for launch, place in zip(launches, places, strict=False):
        run_launch(launch, q, batch, cache, spec, out, own=own, overlap=overlap, place=place.value)
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
    place: int = ALONE.value,
) -> None:
    """Run a launch of a plan (and the join, where it splits), writing its rows of ``out``; ``place`` is one of `overlap.py`'s."""
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = cache.keys.shape[1:3]
    short, long, tile = launch.short, launch.long, launch.tile
    rows, splits = len(batch.query_lens_host), short.num_splits > 1
    block_d = triton.next_power_of_2(head_dim)
    tiles = short.max_tiles if splits else 0
    states = TileStates.empty(tiles, rows, short.max_query, num_heads, head_dim, q.device)
    # An unused argument must still be a tensor.
    key_scales, value_scales = cache.scales if cache.scales is not None else (q, q)
    chunks = None
    if own is not None and long.num_tiles:
        chunks = TensorDescriptor(own, list(own.shape), list(own.stride()), [tile.block_n, block_d])
    ordered = batch.longest_first is not None and short.num_tiles > 0 and not splits
    float8 = multiplies_float16(cache.keys, q)
    programs = (long.num_tiles + short.num_tiles * short.num_splits) * num_kv_heads
    _attention_kernel[(min(programs, long.at_once or programs),)](
        q,
        cache.keys,
        cache.values,
        key_scales,
        value_scales,
        chunks,
        spec.rope,
        spec.norms[0] if spec.norms is not None else q,
        out,
        states.partial,
        states.stats,
        batch.query_starts,
        batch.context_lens,
        batch.block_tables,
        batch.longest_first if ordered else batch.context_lens,
        q.stride(0),
        batch.block_tables.stride(0),
        rows,
        long.num_tiles,
        short.tiles_per_row,
        short.num_splits,
        states.tile_stride,
        launch.max_short,
        spec.window if spec.window is not None else 0,
        spec.scale * _LOG2_E,
        spec.eps,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_SIZE=block_size,
        SHORT_M=short.tile.block_m,
        LONG_M=long.tile.block_m,
        BLOCK_N=tile.block_n,
        ROTATE=own is not None,
        QK_NORM=own is not None and spec.norms is not None,
        ORDERED=ordered,
        OWN=chunks is not None,
        FLOAT8=float8,
        SHORT_PAIRS=float8 and short.tile.block_m <= MAX_PAIR_ROWS,
        LONG_PAIRS=float8 and long.tile.block_m <= MAX_PAIR_ROWS,
        SPLIT=splits,
        WINDOWED=spec.window is not None,
        SOFT_CAP=spec.soft_cap,
        IN_TURN=long.at_once is not None,
        OVERLAP=overlap,
        PLACE=place,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **launch_options(overlap or place == SECOND.value),
    )
    if splits:
        join_tiles(states, out, batch, spec.window, tile.block_n, overlap=overlap)
