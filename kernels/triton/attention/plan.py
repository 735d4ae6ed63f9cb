"""Planning of attention on the host: tiles and numbers of programs, from upper bounds only.

Nothing here reads the device. So a plan for a bucket's bounds can be captured in a CUDA graph and replayed for every batch
that fits the bucket: programs of shorter or empty rows end early. This file has what all plans share, and the plan of prompt chunks;
that of decodes and verifies is in `decode_plan.py`.

The tile of keys belongs to the arithmetic (`online_softmax.py`): it depends on the model alone. All else here may change with
the batch and the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from draftline.kernels.batch import LayerCache
from draftline.kernels.triton.attention.fp8_cache import MAX_PAIR_ROWS, multiplies_float16
from draftline.kernels.triton.device import SLACK, DeviceLimits, fitting

SHORT_QUERY = 32
"""The longest query of decodes and verifies, which have a small tile. Longer ones (prompt chunks) have a large one."""

MAX_SPLITS = 64
"""The largest number of programs that share one row's history."""

_MAX_STORED = 2**28
"""Bytes of tiles' states; a batch that would need more is not split."""

_LONG_TILE = 64

_REGISTERS_OF_THREE = 168
"""A thread's registers where a multiprocessor runs three programs of prompt chunks. They lack some, which costs less than the third
program gains, but not where no multiprocessor has a third."""

_COLUMNS_PER_SM = 256
"""Programs that share histories times the size of a head, a multiprocessor. More would wait for each other."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The shape of one program's work.

    Attributes:
        block_m: query rows (query tokens times the heads of a group), a power of two, at least 16.
        block_n: keys a loop iteration, `AttentionShape.key_tile`.
        num_warps: warps a program.
        num_stages: depth of the software pipeline that loads keys and values.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    def smaller(self) -> Tile | None:
        """The next smaller launch with the same tile of keys; None if there is none."""
        if self.num_stages > 2:
            return replace(self, num_stages=2)
        return replace(self, block_m=self.block_m // 2) if self.block_m > 16 else None


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """How the rows of prompt chunks are divided.

    Attributes:
        tile: the tile of each program.
        min_query: the fewest query tokens of a row. Shorter ones are decodes and verifies.
        num_tiles: query tiles in all, an upper bound: programs search for their row.
        at_once: programs that take the tiles of all heads in turn; None for one a tile and head.
        registers: the most registers of a thread; None for as many as it needs.
    """

    tile: Tile
    min_query: int
    num_tiles: int
    at_once: int | None = None
    registers: int | None = None


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The properties of a model and a device that plans depend on.

    Attributes:
        group: query heads that share one key/value head.
        num_kv_heads: key/value heads.
        head_dim: size of one head.
        limits: the device's.
        wide: whether activations are float32.
        float8: whether keys are multiplied as float16 (`fp8_cache.py`).
    """

    group: int
    num_kv_heads: int
    head_dim: int
    limits: DeviceLimits
    wide: bool = False
    float8: bool = False

    @staticmethod
    def of(group: int, activations: Tensor, cache: LayerCache, limits: DeviceLimits) -> AttentionShape:
        """The shape of a layer with these activations and this cache."""
        num_kv_heads, head_dim = cache.keys.shape[2:]
        wide, float8 = activations.dtype == torch.float32, multiplies_float16(cache.keys, activations)
        return AttentionShape(group, num_kv_heads, head_dim, limits, wide, float8)

    @property
    def key_tile(self) -> int:
        """Keys of a tile: as many as fit shared memory in a pipeline of keys and values, on every device."""
        # Exact float32 products do not run on matrix units: a larger tile would only spill registers.
        return 16 if self.wide else max(16, min(64, 8192 // next_power_of_2(self.head_dim)))

    @property
    def row_bytes(self) -> int:
        """The size of a head as a kernel holds it in shared memory."""
        return (4 if self.wide else 2) * next_power_of_2(self.head_dim)

    def num_tiles(self, context: int) -> int:
        """The tiles of a history."""
        return max(-(-context // self.key_tile), 1)

    def state_bytes(self, context: int) -> int:
        """The size of the states of all tiles of a history, for one query token."""
        return self.num_tiles(context) * self.group * self.num_kv_heads * (self.head_dim + 2) * 4


def next_power_of_2(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << (n - 1).bit_length()


def max_lanes(shape: AttentionShape) -> int:
    """The largest tile of decodes and verifies, in query rows."""
    if shape.float8:
        return MAX_PAIR_ROWS
    largest = Tile(64, shape.key_tile, num_warps=4, num_stages=2)
    return fitting(largest, partial(_short_bytes, shape), shape.limits).block_m


def _short_bytes(shape: AttentionShape, tile: Tile) -> int:
    """Shared memory of a program of decodes and verifies with the shallowest pipeline: queries, keys, values, and a tile on its way."""
    return (tile.block_m + 3 * tile.block_n) * shape.row_bytes + SLACK


def chunk_tile(shape: AttentionShape) -> Tile:
    """The tile of prompt chunks, large enough to be bound by arithmetic."""
    if shape.wide:
        return Tile(max(16, next_power_of_2(shape.group)), shape.key_tile, num_warps=4, num_stages=2)
    # Two such programs fit a multiprocessor: while one computes a softmax, the other keeps the matrix units busy.
    block_m = max(_LONG_TILE, next_power_of_2(shape.group))
    return fitting(Tile(block_m, shape.key_tile, num_warps=4, num_stages=3), partial(_chunk_bytes, shape), shape.limits)


def _chunk_bytes(shape: AttentionShape, tile: Tile) -> int:
    """Shared memory of a program of prompt chunks: its queries, and the keys and values that are loaded ahead."""
    # Hardware copies a chunk's own keys where launches overlap too, in a loop that has all stages.
    stages = tile.num_stages if shape.limits.overlaps else tile.num_stages - 1
    return (2 * stages * tile.block_n + tile.block_m) * shape.row_bytes


def _chunks_per_sm(shape: AttentionShape, tile: Tile) -> int:
    """Programs of prompt chunks that a multiprocessor runs at once."""
    # Three where the matrix units read both factors from shared memory. On other devices, and in float32, registers hold one.
    most = 3 if 90 <= shape.limits.capability < 120 and not shape.wide else 2
    return max(1, min(shape.limits.shared_bytes // _chunk_bytes(shape, tile), most))


def num_splits(shape: AttentionShape, num_tiles: int, max_context: int, num_tokens: int) -> int:
    """Programs that share each history: enough to fill the device, but at most one a tile."""
    if not have_room(shape, num_tokens, max_context):
        return 1
    return max(1, min(_room(shape, num_tiles), shape.num_tiles(max_context), MAX_SPLITS))


def longest_short(query_lens: tuple[int, ...]) -> int:
    """The most query tokens of a batch's decodes and verifies, from each row's query length; 0 if it has none."""
    return max((length for length in query_lens if length <= SHORT_QUERY), default=0)


def have_room(shape: AttentionShape, num_tokens: int, max_context: int, most: int = _MAX_STORED) -> bool:
    """Whether the states of so many query tokens fit the memory that they may take."""
    return num_tokens * shape.state_bytes(max_context) <= most


def _room(shape: AttentionShape, num_tiles: int) -> int:
    """The programs that the device has room for, for each query tile and key/value head."""
    programs = shape.limits.num_sms * max(_COLUMNS_PER_SM // next_power_of_2(shape.head_dim), 1)
    return programs // max(num_tiles * shape.num_kv_heads, 1)


@lru_cache(maxsize=64)
def plan_chunks(
    shape: AttentionShape, query_lens: tuple[int, ...], num_tokens: int, longest_short: int
) -> ChunkPlan | None:
    """The plan of a batch's prompt chunks; None if it has none.

    Cached, since every layer of a step needs the same plan.

    Args:
        shape: the model and the device.
        query_lens: each row's query length, or an upper bound of it.
        num_tokens: T, the query tokens of all rows, or an upper bound.
        longest_short: the most query tokens of the batch's decodes and verifies; 0 if it has none.
    """
    if max(query_lens, default=0) <= SHORT_QUERY:
        return None
    tile = chunk_tile(shape)
    queries = tile.block_m // shape.group
    # Row r's tiles start at query_starts[r] // queries + r for so many queries a tile, so this many cover every division
    # into rows. With bounds for lengths, any row may have any length up to the longest.
    plan = ChunkPlan(tile, longest_short + 1, num_tiles=num_tokens // queries + len(query_lens))
    programs, per_sm = -(-num_tokens // queries) * shape.num_kv_heads, _chunks_per_sm(shape, tile)
    if per_sm > 2 and programs > 2 * shape.limits.num_sms:
        plan = replace(plan, registers=_REGISTERS_OF_THREE)
    # A launch of decodes follows, which starts when all of this one's programs have started. Most of so few tiles are padding, for
    # which no program should take the decodes' room.
    at_once = per_sm * shape.limits.num_sms
    few = longest_short and programs <= 2 * at_once
    return replace(plan, at_once=min(programs, at_once)) if few else plan
