"""Attention with a history that is shared out between programs: storing each tile's state, and joining the tiles.

They are joined from the first to the last, as `online_softmax.join` does where one program has them all.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.batch import Batch
from draftline.kernels.triton.attention.online_softmax import NO_KEY
from draftline.kernels.triton.overlap import launch_options, wait_for_previous
from draftline.kernels.triton.tuples import no_tensors

_TOGETHER = tl.constexpr(8)
"""Tiles that are loaded at a time."""


@triton.jit
def store_tile(
    partial: tl.tensor,
    stats: tl.tensor,
    index: tl.tensor,
    acc: tl.tensor,
    row_max: tl.tensor,
    row_sum: tl.tensor,
    mask: tl.tensor,
    HEAD_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
) -> None:
    """Store a tile's state of queries [M] at the indices [M] of ``partial`` [., D] and ``stats`` [., 2]."""
    if PAIRS:
        acc = tl.interleave(acc[0], acc[1])
    dim = tl.arange(0, acc.shape[1])[None, :]
    tl.store(partial + index[:, None] * HEAD_DIM + dim, acc, mask=mask[:, None] & (dim < HEAD_DIM))
    tl.store(stats + index * 2, row_max, mask=mask)
    tl.store(stats + index * 2 + 1, row_sum, mask=mask)


@triton.jit
def join_stored(
    partial: tl.tensor,
    stats: tl.tensor,
    first: tl.tensor,
    col: tl.tensor,
    col_mask: tl.tensor,
    num_tiles: tl.tensor,
    HEAD_DIM: tl.constexpr,
) -> tl.tensor:
    """The attention of columns ``col`` from the states of all tiles.

    Args:
        partial: see `store_tile`.
        stats: see `store_tile`.
        first: the index of the first tile of each column's query.
        col: [C] columns of a head.
        col_mask: [C], which of them exist.
        num_tiles: the number of tiles.
        HEAD_DIM: size of a head.
    """
    total = tl.zeros(col.shape, tl.float32)
    total_sum = tl.zeros(col.shape, tl.float32)
    total_max = tl.full(col.shape, NO_KEY, tl.float32)
    for base in range(0, num_tiles, _TOGETHER):
        # Loads first: the sums are a chain. Not through the L1 cache, which may lack other multiprocessors' stores.
        accs = no_tensors()
        maxima = no_tensors()
        sums = no_tensors()
        for ahead in tl.static_range(_TOGETHER):
            tile = base + ahead + tl.zeros_like(col)
            mask = col_mask & (tile < num_tiles)
            index = first + tile
            accs += (tl.load(partial + index * HEAD_DIM + col, mask=mask, other=0.0, cache_modifier=".cg"),)
            maxima += (tl.load(stats + index * 2, mask=mask, other=NO_KEY, cache_modifier=".cg"),)
            sums += (tl.load(stats + index * 2 + 1, mask=mask, other=0.0, cache_modifier=".cg"),)
        for ahead in tl.static_range(_TOGETHER):
            new_max = tl.maximum(total_max, maxima[ahead])
            before = tl.exp2(total_max - new_max)
            added = tl.exp2(maxima[ahead] - new_max)
            total = tl.fma(accs[ahead], added, total * before)
            total_sum = tl.fma(sums[ahead], added, total_sum * before)
            total_max = new_max
    return total / tl.where(col_mask, total_sum, 1.0)


@triton.jit(do_not_specialize=["max_tiles", "max_query", "window"])
def _join_kernel(
    partial: tl.tensor,
    stats: tl.tensor,
    out: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    max_tiles: int,
    max_query: int,
    window: int,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Join the tiles of one query token and head."""
    wait_for_previous(OVERLAP)
    pid = tl.program_id(0)
    head = pid % NUM_HEADS
    row = pid // NUM_HEADS // max_query
    row_query = pid // NUM_HEADS % max_query
    row_start = tl.load(query_starts + row)
    query_len = tl.load(query_starts + row + 1) - row_start
    context_len = tl.load(context_lens + row)
    if (row_query >= query_len) | (query_len > max_query):
        return
    first_tile = 0
    if WINDOWED:
        first_tile = tl.maximum(context_len - query_len - window + 1, 0) // BLOCK_N
    flat = (row_start + row_query).to(tl.int64) * NUM_HEADS + head
    col = tl.arange(0, BLOCK_D)
    first = flat * max_tiles + tl.zeros_like(col)
    num_tiles = tl.cdiv(context_len, BLOCK_N) - first_tile
    result = join_stored(partial, stats, first, col, col < HEAD_DIM, num_tiles, HEAD_DIM)
    tl.store(out + flat * HEAD_DIM + col, result.to(out.dtype.element_ty), mask=col < HEAD_DIM)


def join_tiles(
    partial: Tensor,
    stats: Tensor,
    out: Tensor,
    batch: Batch,
    rows: int,
    max_query: int,
    window: int,
    block_n: int,
    *,
    overlap: bool,
) -> None:
    """Write the attention of all rows with up to ``max_query`` query tokens.

    Args:
        partial: [T, H, N, D] float32, each tile's sum of values, weighted relative to its largest score.
        stats: [T, H, N, 2] float32, that largest score (base 2) and the sum of weights.
        out: [T, H * D].
        batch: the rows.
        rows: the number of rows.
        max_query: rows with more query tokens are left alone.
        window: positions that a query sees, or 0 for all.
        block_n: keys of a tile.
        overlap: start before the previous kernel has ended.
    """
    num_heads, tiles, head_dim = partial.shape[1:]
    block_d = triton.next_power_of_2(head_dim)
    _join_kernel[(rows * max_query * num_heads,)](
        partial,
        stats,
        out,
        batch.query_starts,
        batch.context_lens,
        tiles,
        max_query,
        window,
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_N=block_n,
        WINDOWED=window > 0,
        OVERLAP=overlap,
        num_warps=max(block_d // 64, 1),
        **launch_options(overlap),
    )
