"""Decodes and verifies: (QK-norm,) rotation, cache write and attention of a few tokens a row in one launch, or in two.

A program owns one row, one key/value head and some tiles of the row's history. It rotates the row's queries of the heads
that share the key/value head, packed into one tile, and attends to its tiles of keys through the block table
(`online_softmax.py`). The program whose tiles hold the new tokens' positions first rotates the new keys and writes keys and
values to the cache, and then reads them there like all others.

Of few rows, programs share a history (Flash-Decoding, Dao et al. 2023), and a second launch joins its tiles (`join.py`). A CUDA graph's
bucket decides the number of programs, but the row decides the number of keys: a program without tiles is short. Of many rows, a
program has all of a history, and joins the tiles itself. Where some histories are much longer than the others, histories are divided
into parts, each with a program (`inputs/history_parts.py`). The second launch joins their tiles, or the last program does.

Beside prompts, keys are rotated and written before (`rope.py`), and the launch may run at the same time as that of the chunks
(`ragged.py`).

Not here: the kernel (`decode_kernel.py`), prompt chunks (`chunks.py`), and the number of programs (`decode_plan.py`).
"""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.triton.attention.decode_kernel import decode_attention_kernel
from draftline.kernels.triton.attention.decode_plan import MAX_QUERIES, DecodePlan
from draftline.kernels.triton.attention.fp8_cache import multiplies_float16
from draftline.kernels.triton.attention.join import TileStates, join_tiles
from draftline.kernels.triton.overlap import ALONE, SECOND, launch_options
from draftline.kernels.triton.rows import empty_rows

_LOG2_E = math.log2(math.e)


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
    """Launch the kernel, and the join where programs share histories.

    ``new`` is the padded number of a row's new tokens whose keys and values the kernel writes; 0 if the cache has them.
    """
    block_size, num_kv_heads, head_dim = cache.keys.shape[1:]
    rows = batch.context_lens.shape[0]
    tile, num_splits = plan.tile, plan.num_splits
    split, ordered = num_splits > 1, num_splits == 1 and batch.longest_first is not None
    parts = batch.parts if plan.max_part_tiles else None
    tiles, state_rows = (plan.max_tiles if split else 0, rows) if parts is None else (plan.max_part_tiles, 1)
    states = TileStates.empty(tiles, state_rows, plan.longest, num_heads, head_dim, qkv.device)
    num_parts = 0 if parts is None else len(parts.rows)
    # An unused argument must still be a tensor.
    query_norm, key_norm = spec.norms if spec.norms is not None else (qkv, qkv)
    key_scales, value_scales = cache.scales if cache.scales is not None else (qkv, qkv)
    overlaps = overlap or place == SECOND.value  # with the first of the pair
    decode_attention_kernel[((num_parts + rows) * num_kv_heads, num_splits, plan.tiles_per_row)](
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
        batch.context_lens if parts is None else parts.starts,
        batch.context_lens if parts is None else parts.rows,
        batch.context_lens if parts is None else parts.length,
        batch.context_lens if parts is None else parts.arrived,
        spec.rope,
        query_norm,
        key_norm,
        qkv.stride(0),
        batch.block_tables.stride(0),
        num_splits,
        states.tile_stride,
        plan.longest,
        num_parts,
        plan.max_part_tiles,
        spec.window if spec.window is not None else 0,
        spec.scale * _LOG2_E,
        spec.eps,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        HEADS=triton.next_power_of_2(num_heads // num_kv_heads),
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
        PARTS=parts is not None,
        LAST_JOINS=parts is not None and plan.last_joins,
        ORDERED=ordered,
        EARLY=split and plan.early and batch.settled and cache.keys.dtype == qkv.dtype,
        ROTATE=rotate,
        NEXT=plan.starts_next,
        PLACE=place,
        OVERLAP=overlaps,
        PRECISION="ieee" if qkv.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **launch_options(overlaps),
    )
    if split or (parts is not None and not plan.last_joins):
        join_tiles(
            states, out, batch, spec.window, tile.block_n, parts=parts, starts_next=plan.starts_next, overlap=overlap
        )
