"""Attention with a history that is shared out between programs: storing each tile's state, and joining the tiles.

They are joined from the first to the last, as `online_softmax.join` does where one program has them all.

The states of one tile lie together, and those of the next behind them. Histories are much shorter than a graph's bound, so the
memory in use is contiguous. With all tiles of a query together, it would be short pieces at distances of a power of two, which share
few of the L2 cache's slices: a join took three times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.batch import Batch, HistoryParts
from draftline.kernels.triton.attention.decode_parts import parts_of
from draftline.kernels.triton.attention.online_softmax import NO_KEY, divisor, join
from draftline.kernels.triton.overlap import PREPARED, launch_options, start_next, wait_for_previous
from draftline.kernels.triton.tuples import no_tensors

_FEW_TOGETHER, _MANY_TOGETHER, _MANY_PROGRAMS = 8, tl.constexpr(16), 128
"""Tiles that are loaded at a time, and where more programs join than so many: a load takes longer then. With few programs it would be
longer code and a longer chain for the short histories, and gain nothing."""


@dataclass(frozen=True, slots=True)
class TileStates:
    """The states of N tiles of keys, of R rows with up to Q query tokens each.

    Attributes:
        partial: [N, R, Q, H, D] float32, each tile's sum of values, weighted relative to its largest score.
        stats: [N, R, Q, H, 2] float32, that largest score (base 2) and the sum of weights.
    """

    partial: Tensor
    stats: Tensor

    @staticmethod
    def empty(tiles: int, rows: int, queries: int, num_heads: int, head_dim: int, device: torch.device) -> TileStates:
        """States of these sizes, to be filled."""
        shape = (tiles, rows, queries, num_heads)
        partial = torch.empty((*shape, head_dim), dtype=torch.float32, device=device)
        return TileStates(partial, torch.empty((*shape, 2), dtype=torch.float32, device=device))

    @property
    def tile_stride(self) -> int:
        """States of one tile: R * Q * H."""
        return self.stats.stride(0) // self.stats.shape[-1]


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
    query: tl.tensor,
    mask: tl.tensor,
    tile_stride: tl.tensor,
    num_tiles: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TOGETHER: tl.constexpr,
) -> tl.tensor:
    """The attention [M, D] of the queries from the states of all tiles.

    Args:
        partial: see `TileStates`.
        stats: see `TileStates`.
        query: [M] int64, indices of the queries in a tile's states.
        mask: [M], which of them exist.
        tile_stride: see `TileStates`.
        num_tiles: the number of tiles.
        HEAD_DIM: size of a head.
        BLOCK_D: D, ``HEAD_DIM`` padded to a power of two.
        TOGETHER: tiles that are loaded at a time.
    """
    M: tl.constexpr = query.shape[0]
    dim = tl.arange(0, BLOCK_D)[None, :]
    total = tl.zeros([M, BLOCK_D], tl.float32)
    total_sum = tl.zeros([M], tl.float32)
    total_max = tl.full([M], NO_KEY, tl.float32)
    for base in range(0, num_tiles, TOGETHER):
        # Loads first: the sums are a chain. Not through the L1 cache, which may lack other multiprocessors' stores.
        accs = no_tensors()
        maxima = no_tensors()
        sums = no_tensors()
        for ahead in tl.static_range(TOGETHER):
            tile = base + ahead + tl.zeros([M], tl.int32)
            stored = mask & (tile < num_tiles)
            index = query + tile * tile_stride
            source = partial + index[:, None] * HEAD_DIM + dim
            accs += (tl.load(source, mask=stored[:, None] & (dim < HEAD_DIM), other=0.0, cache_modifier=".cg"),)
            maxima += (tl.load(stats + index * 2, mask=stored, other=NO_KEY, cache_modifier=".cg"),)
            sums += (tl.load(stats + index * 2 + 1, mask=stored, other=0.0, cache_modifier=".cg"),)
        for ahead in tl.static_range(TOGETHER):
            total, total_max, total_sum = join(
                total, total_max, total_sum, accs[ahead], maxima[ahead], sums[ahead], False
            )
    return total / divisor(total_sum)


@triton.jit
def join_last_part(
    arrived: tl.tensor,
    num_parts: tl.tensor,
    partial: tl.tensor,
    stats: tl.tensor,
    first_state: tl.tensor,
    num_tiles: tl.tensor,
    tile_stride: tl.tensor,
    out: tl.tensor,
    token: tl.tensor,
    kv_head: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """The end of each program with a part of a history: the last one that arrives joins all of its tiles for the heads of a group.

    Args:
        arrived: the count of programs that have arrived, 0 before and after.
        num_parts: how many there will be: those that have tiles.
        partial: see `TileStates`.
        stats: see `TileStates`.
        first_state: int64, where the states of the history begin, in tiles.
        num_tiles: the history's tiles.
        tile_stride: see `TileStates`.
        out: [T, H * D].
        token: the query token.
        kv_head: the key/value head of the group.
        NUM_KV_HEADS: key/value heads.
        GROUP: query heads of each.
        HEADS: the same, padded to a power of two.
        HEAD_DIM: size of a head.
        BLOCK_D: the same, padded to a power of two.
    """
    # All threads' stores come first, and are visible to a program that arrives later.
    tl.debug_barrier()
    if tl.atomic_add(arrived, 1, sem="acq_rel") == num_parts - 1:
        tl.store(arrived, 0)
        member = tl.arange(0, HEADS)
        head = kv_head * GROUP + member
        dim = tl.arange(0, BLOCK_D)[None, :]
        state = first_state * NUM_KV_HEADS * GROUP + head
        result = join_stored(
            partial, stats, state, member < GROUP, tile_stride, num_tiles, HEAD_DIM, BLOCK_D, _MANY_TOGETHER
        )
        flat = token * NUM_KV_HEADS * GROUP + head
        mask = (member < GROUP)[:, None] & (dim < HEAD_DIM)
        tl.store(out + flat[:, None] * HEAD_DIM + dim, result.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tile_stride", "max_query", "window", "max_tiles"])
def _join_kernel(
    partial: tl.tensor,
    stats: tl.tensor,
    out: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    part_starts: tl.tensor,
    part_length: tl.tensor,
    tile_stride: int,
    max_query: int,
    window: int,
    max_tiles: int,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TOGETHER: tl.constexpr,
    WINDOWED: tl.constexpr,
    PARTS: tl.constexpr,
    NEXT: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Join the tiles of one query token and head. With PARTS, rows without parts are complete already."""
    start_next(NEXT, OVERLAP)
    pid = tl.program_id(0)
    head = pid % NUM_HEADS
    row = pid // NUM_HEADS // max_query
    row_query = pid // NUM_HEADS % max_query
    row_start = tl.load(query_starts + row)
    query_len = tl.load(query_starts + row + 1) - row_start
    context_len = tl.load(context_lens + row)
    query = pid.to(tl.int64) + tl.arange(0, 1)
    if PARTS:
        first_part, num_parts, part_tiles = parts_of(row, part_starts, part_length, max_tiles, BLOCK_N)
        query = (first_part.to(tl.int64) * part_tiles * max_query + row_query) * NUM_HEADS + head + tl.arange(0, 1)
        query_len = tl.where(num_parts > 0, query_len, 0)
    wait_for_previous(OVERLAP, NEXT)
    if (row_query >= query_len) | (query_len > max_query):
        return
    first_tile = 0
    if WINDOWED:
        first_tile = tl.maximum(context_len - query_len - window + 1, 0) // BLOCK_N
    flat = (row_start + row_query).to(tl.int64) * NUM_HEADS + head
    dim = tl.arange(0, BLOCK_D)[None, :]
    num_tiles = tl.cdiv(context_len, BLOCK_N) - first_tile
    result = join_stored(partial, stats, query, query >= 0, tile_stride, num_tiles, HEAD_DIM, BLOCK_D, TOGETHER)
    tl.store(out + flat * HEAD_DIM + dim, result.to(out.dtype.element_ty), mask=dim < HEAD_DIM)


def join_tiles(
    states: TileStates,
    out: Tensor,
    batch: Batch,
    window: int | None,
    block_n: int,
    *,
    parts: HistoryParts | None = None,
    starts_next: int = PREPARED.value,
    overlap: bool,
) -> None:
    """Write the attention of all rows that have no more query tokens than there are states of.

    Args:
        states: those of all tiles.
        out: [T, H * D].
        batch: the rows.
        window: positions that a query sees, or None for all.
        block_n: keys of a tile.
        parts: the parts of the histories whose tiles have states, one after the other; None: each row has room for its own tiles.
        starts_next: when the next kernel may start, as `overlap.py` names the times.
        overlap: start before the previous kernel has ended.
    """
    _, queries, num_heads, head_dim = states.partial.shape[1:]
    rows = batch.context_lens.shape[0]
    block_d, programs = triton.next_power_of_2(head_dim), rows * queries * num_heads
    _join_kernel[(programs,)](
        states.partial,
        states.stats,
        out,
        batch.query_starts,
        batch.context_lens,
        batch.context_lens if parts is None else parts.starts,
        batch.context_lens if parts is None else parts.length,
        states.tile_stride,
        queries,
        window if window is not None else 0,
        states.stats.shape[0],
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_N=block_n,
        TOGETHER=_MANY_TOGETHER.value if programs > _MANY_PROGRAMS else _FEW_TOGETHER,
        WINDOWED=window is not None,
        PARTS=parts is not None,
        NEXT=starts_next,
        OVERLAP=overlap,
        num_warps=max(block_d // 64, 1),
        **launch_options(overlap),
    )
