"""Attention of prompt chunks, one launch for all of a batch.

A program owns one tile of queries and one key/value head (`query_tiles.py`), or several of them in turn. It runs over the sequence's
keys (`online_softmax.py`): the history through the block table, and a chunk's own keys from the activations, where they are
contiguous.

Not here: the decodes and verifies beside them (`decode.py`), and the division into tiles (`plan.py`).
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
from draftline.kernels.triton.attention.plan import ChunkPlan
from draftline.kernels.triton.attention.query_tiles import attend_chunk, count_tiles, find_tile, search_tile
from draftline.kernels.triton.overlap import ALONE, begin, end, launch_options

_LOG2_E = math.log2(math.e)


@triton.jit(do_not_specialize=["table_stride", "num_rows", "num_tiles", "max_short", "window"])
def _chunk_attention_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    own: tl.tensor,
    rope: tl.tensor,
    query_norm: tl.tensor,
    out: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    query_stride: int,
    table_stride: int,
    num_rows: int,
    num_tiles: int,
    max_short: int,
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
    ROTATE: tl.constexpr,
    QK_NORM: tl.constexpr,
    OWN: tl.constexpr,
    FLOAT8: tl.constexpr,
    PAIRS: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    IN_TURN: tl.constexpr,
    OVERLAP: tl.constexpr,
    PLACE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Rows with up to ``max_short`` query tokens are left out. IN_TURN, a program takes several tiles."""
    # Heads run fastest: programs that run together read neighbouring heads of the same tokens. The later tiles of each chunk, which see
    # more keys, start before the others. That evens out the end of the launch.
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    rotation = (rope, query_norm, eps)
    begin(PLACE, OVERLAP)
    if IN_TURN:
        tiles = count_tiles(query_starts, num_rows, max_short, QUERIES)
        for item in range(tl.program_id(0), tiles * NUM_KV_HEADS, tl.num_programs(0)):
            tile = tiles - 1 - item // NUM_KV_HEADS
            row, first = find_tile(tile, query_starts, num_rows, max_short, QUERIES)
            attend_chunk(
                row, first, item % NUM_KV_HEADS, queries, rotation, keys, values, key_scales, value_scales, own, out,
                query_starts, context_lens, block_tables, query_stride, table_stride, max_short, window, scale,
                NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_M, BLOCK_N, ROTATE, QK_NORM,
                OWN, FLOAT8, PAIRS, WINDOWED, SOFT_CAP, PRECISION,
            )  # fmt: skip
    else:
        tile = num_tiles - 1 - tl.program_id(0) // NUM_KV_HEADS
        row, first = search_tile(tile, query_starts, num_rows, QUERIES)
        attend_chunk(
            row, first, tl.program_id(0) % NUM_KV_HEADS, queries, rotation, keys, values, key_scales, value_scales, own, out,
            query_starts, context_lens, block_tables, query_stride, table_stride, max_short, window, scale,
            NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_M, BLOCK_N, ROTATE, QK_NORM,
            OWN, FLOAT8, PAIRS, WINDOWED, SOFT_CAP, PRECISION,
        )  # fmt: skip
    end(PLACE)


def attend_chunks(
    queries: Tensor,
    batch: Batch,
    cache: LayerCache,
    spec: AttentionSpec,
    out: Tensor,
    *,
    plan: ChunkPlan,
    own: Tensor | None = None,
    place: int = ALONE.value,
    overlap: bool = False,
) -> None:
    """Write the attention of a batch's prompt chunks.

    Args:
        queries: [T, H, D], each token's heads contiguous.
        batch: rows and block tables.
        cache: the layer's keys and values, the new ones included.
        spec: the layer's attention.
        out: [T, H * D].
        plan: the division into tiles.
        own: [T, (H + 2 G) * D], the tokens' queries, and their rotated keys and values. Then the queries are normalised and
            rotated here, and chunks read their own keys here.
        place: one of `overlap.py`'s.
        overlap: start before the previous kernel has ended.
    """
    num_heads, head_dim = queries.shape[1:]
    block_size, num_kv_heads = cache.keys.shape[1:3]
    block_d, tile = triton.next_power_of_2(head_dim), plan.tile
    # An unused argument must still be a tensor.
    key_scales, value_scales = cache.scales if cache.scales is not None else (queries, queries)
    descriptor = None
    if own is not None:
        descriptor = TensorDescriptor(own, list(own.shape), list(own.stride()), [tile.block_n, block_d])
    float8 = multiplies_float16(cache.keys, queries)
    programs = plan.num_tiles * num_kv_heads
    _chunk_attention_kernel[(min(programs, plan.at_once or programs),)](
        queries,
        cache.keys,
        cache.values,
        key_scales,
        value_scales,
        descriptor,
        spec.rope,
        spec.norms[0] if spec.norms is not None else queries,
        out,
        batch.query_starts,
        batch.context_lens,
        batch.block_tables,
        queries.stride(0),
        batch.block_tables.stride(0),
        len(batch.query_lens_host),
        plan.num_tiles,
        plan.min_query - 1,
        spec.window if spec.window is not None else 0,
        spec.scale * _LOG2_E,
        spec.eps,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_SIZE=block_size,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        ROTATE=own is not None,
        QK_NORM=own is not None and spec.norms is not None,
        OWN=own is not None,
        FLOAT8=float8,
        PAIRS=float8 and tile.block_m <= MAX_PAIR_ROWS,
        WINDOWED=spec.window is not None,
        SOFT_CAP=spec.soft_cap,
        IN_TURN=plan.at_once is not None,
        OVERLAP=overlap,
        PLACE=place,
        PRECISION="ieee" if queries.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **({} if plan.registers is None else {"maxnreg": plan.registers}),
        **launch_options(overlap),
    )
