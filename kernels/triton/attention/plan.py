"""Planning of attention on the host: tiles and numbers of programs, from upper bounds only.

Nothing here reads the device. So a plan for a bucket's bounds can be captured in a CUDA graph and replayed for every batch
that fits the bucket: programs of shorter or empty rows end early.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

SHORT_QUERY = 32
"""The longest query of decodes and verifies, which share a launch with a small tile. Longer ones (prompt chunks) have
their own launch, with a large tile."""

MAX_SPLITS = 64
"""The largest number of parts of one row's history."""

MAX_QUERIES = 16
"""The longest query that one launch can rotate, write and attend with."""

_LONG_TILE = 64
_PROGRAMS_PER_SM = 4
_MAX_DECODE_PROGRAMS_PER_SM = 12
_FEW_PROGRAMS = 16
_WIDE_STEP = 128
_LONGEST_WIDE_HEAD = 256


@dataclass(frozen=True, slots=True)
class Tile:
    """The shape of one program's work.

    Attributes:
        block_m: query rows (query tokens times the heads of a group), a power of two, at least 16.
        block_n: keys a loop iteration, a power of two, at least 16.
        num_warps: warps a program.
        num_stages: depth of the software pipeline that loads keys and values.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class AttentionLaunch:
    """One launch over the rows whose query length is in ``[min_query, max_query]``.

    Attributes:
        tile: the tile of each program.
        min_query: shorter rows are left to another launch.
        max_query: longer rows are left to another launch.
        tiles_per_row: query tiles a row where program ids map to rows by division; 0 where they search for their row.
        num_tiles: query tiles in all, an upper bound.
        num_splits: parts that each row's history is split into; 1 needs no reduction.
    """

    tile: Tile
    min_query: int
    max_query: int
    tiles_per_row: int
    num_tiles: int
    num_splits: int

    @property
    def reads_own(self) -> bool:
        """Whether its rows are long enough to read their own keys from the activations."""
        return self.max_query > SHORT_QUERY


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The properties of a model and a device that plans depend on.

    Attributes:
        group: query heads that share one key/value head.
        num_kv_heads: key/value heads.
        head_dim: size of one head.
        element_size: bytes of one key element.
        num_sms: the device's multiprocessors.
        float8: whether keys are FP8.
        qk_norm: whether queries and keys are normalised.
    """

    group: int
    num_kv_heads: int
    head_dim: int
    element_size: int
    num_sms: int
    float8: bool = False
    qk_norm: bool = False


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _keys_a_step(shape: AttentionShape, widest: int) -> int:
    """Keys a loop iteration: as many as fit shared memory in a pipeline of keys and values."""
    row_bytes = _next_power_of_2(shape.head_dim) * shape.element_size
    return max(16, min(widest, 64 * 256 // row_bytes))


def _max_lanes(shape: AttentionShape) -> int:
    """The largest tile of decodes and verifies, in query rows.

    From 64 on products run on Hopper's warpgroup units, which gave wrong results for FP8's pairs of 32 (triton 3.6.0).
    """
    return 32 if shape.float8 else 64


def short_tile(shape: AttentionShape, max_query: int) -> Tile:
    """The tile of decodes and verifies: all heads of a group, and all of a row's query tokens if they fit."""
    block_m = max(16, min(_max_lanes(shape), _next_power_of_2(max_query * shape.group)), _next_power_of_2(shape.group))
    # FP8 keys arrive so fast that an iteration's overhead shows, unless products dominate.
    widest = 128 if shape.float8 and block_m == 16 else 64
    return Tile(block_m, _keys_a_step(shape, widest), num_warps=4, num_stages=3)


def long_tile(shape: AttentionShape) -> Tile:
    """The tile of prompt chunks, large enough to be bound by arithmetic."""
    if shape.element_size > 2:
        # Exact float32 products do not run on matrix units, so a large tile would only spill registers.
        return Tile(max(16, _next_power_of_2(shape.group)), 16, num_warps=4, num_stages=2)
    # Two such programs fit a multiprocessor: while one computes a softmax, the other keeps the matrix units busy.
    block_m = max(_LONG_TILE, _next_power_of_2(shape.group))
    return Tile(block_m, _keys_a_step(shape, 64), num_warps=4, num_stages=3)


def max_split_programs(num_sms: int) -> int:
    """The limit of rows times key/value heads up to which a decode's histories are split; more fill the device."""
    return num_sms


def _few_sizes(rows: int) -> int:
    """The rows, rounded up to 8 times a power of 4: each number of parts needs its own joining kernel."""
    size = 8
    while size < rows:
        size *= 4
    return size


def num_splits(shape: AttentionShape, num_tiles: int, max_context: int, block_n: int) -> int:
    """Parts of each history, a power of two: enough programs to fill the device, but never less than a tile each."""
    programs = num_tiles * shape.num_kv_heads
    wanted = shape.num_sms * _PROGRAMS_PER_SM // max(programs, 1)
    available = -(-max_context // block_n)
    splits = 1
    while splits * 2 <= min(wanted, available, MAX_SPLITS):
        splits *= 2
    return splits


@lru_cache(maxsize=64)
def plan_attention(
    shape: AttentionShape, query_lens: tuple[int, ...], context_lens: tuple[int, ...], num_tokens: int
) -> tuple[AttentionLaunch, ...]:
    """The launches of one batch: none for an empty one, two where short and long rows are mixed.

    Cached, since every layer of a step needs the same plan.

    Args:
        shape: the model and the device.
        query_lens: each row's query length, or an upper bound of it.
        context_lens: each row's context length, or an upper bound of it.
        num_tokens: T, the query tokens of all rows, or an upper bound.
    """
    rows = len(query_lens)
    longest = max(query_lens, default=0)
    longest_short = max((length for length in query_lens if length <= SHORT_QUERY), default=0)
    launches = []
    mixed = longest > SHORT_QUERY
    if longest_short > 0:
        # With prompts, there are few kinds of launches, and the graphs of such batches (`engine/runner/shapes.py`) have
        # them all: no step waits for a compilation. All verifies share one tile, and all contexts one number of parts.
        tile = short_tile(shape, SHORT_QUERY if mixed and longest_short > 1 else longest_short)
        tiles_per_row = -(-longest_short // (tile.block_m // shape.group))
        if mixed:
            split_rows, context = _few_sizes(rows), MAX_SPLITS * tile.block_n
        else:
            split_rows = rows
            context = max(c for q, c in zip(query_lens, context_lens, strict=True) if 0 < q <= SHORT_QUERY)
        splits = num_splits(shape, split_rows * tiles_per_row, context, tile.block_n)
        launches.append(AttentionLaunch(tile, 1, longest_short, tiles_per_row, rows * tiles_per_row, splits))
    if mixed:
        tile = long_tile(shape)
        queries_a_tile = tile.block_m // shape.group
        # Row r's tiles start at query_starts[r] // queries_a_tile + r, so this many cover every division into rows.
        tiles = num_tokens // queries_a_tile + rows
        # Starts where the other launch ends: with bounds for lengths, any row may have any length up to the longest.
        launches.append(AttentionLaunch(tile, longest_short + 1, longest, 0, tiles, 1))
    return tuple(launches)


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How a batch with few query tokens a row is divided.

    Attributes:
        tile: the tile of each program.
        queries: query tokens a row that the tile has room for.
        num_splits: a bound on the parts of one row's history; with several query tokens a power of two.
    """

    tile: Tile
    queries: int
    num_splits: int


@lru_cache(maxsize=64)
def plan_decode(shape: AttentionShape, query_lens: tuple[int, ...], context_lens: tuple[int, ...]) -> DecodePlan | None:
    """The plan of a batch with few query tokens a row, if the fused launch is fastest; else None.

    With very many programs, each runs so long that rotation and cache write cost less in separate kernels. Where rows
    with several query tokens are few, their histories are split, and a second launch joins the parts.

    Args:
        shape: the model and the device.
        query_lens: each row's query length, or an upper bound of it.
        context_lens: each row's context length, or an upper bound of it.
    """
    longest = max(query_lens, default=0)
    programs = max(len(query_lens) * shape.num_kv_heads, 1)
    if longest == 1:
        return _plan_ones(shape, programs, max(context_lens))
    fits = 1 < longest <= MAX_QUERIES and longest * shape.group <= _max_lanes(shape)
    if not fits or programs > 2 * shape.num_sms:
        return None
    block_m, block_n = max(16, _next_power_of_2(longest * shape.group)), _keys_a_step(shape, 64)
    queries = min(block_m // shape.group, MAX_QUERIES)
    if programs <= shape.num_sms:
        splits = num_splits(shape, len(query_lens), max(context_lens), block_n)
        if shape.qk_norm:
            # Every part normalises. So there are half as many, with more threads: four warps lack the registers.
            return DecodePlan(Tile(block_m, block_n, num_warps=8, num_stages=3), queries, -(-splits // 2))
        return DecodePlan(Tile(block_m, block_n, num_warps=4, num_stages=3), queries, splits)
    return DecodePlan(Tile(block_m, block_n, num_warps=4, num_stages=5), queries, 1)


def _plan_ones(shape: AttentionShape, programs: int, context: int) -> DecodePlan | None:
    """The plan of one query token a row."""
    block_m, block_n = max(16, _next_power_of_2(shape.group)), _keys_a_step(shape, 64)
    if programs <= max_split_programs(shape.num_sms):
        tiles = -(-context // block_n)
        max_splits = min(2 * shape.num_sms // programs, MAX_SPLITS)
        fits = _next_power_of_2(shape.head_dim) * shape.element_size <= _LONGEST_WIDE_HEAD
        if fits and programs <= _FEW_PROGRAMS and context <= max_splits * _WIDE_STEP:
            # No program queues, and every part is one tile: fewer parts are joined sooner.
            wide = Tile(block_m, _WIDE_STEP, num_warps=8, num_stages=2)
            return DecodePlan(wide, 1, max(-(-context // _WIDE_STEP), 1))
        splits = min(max_splits, max(tiles, 1))
        return DecodePlan(Tile(block_m, block_n, num_warps=8, num_stages=3), 1, splits)
    if programs > _MAX_DECODE_PROGRAMS_PER_SM * shape.num_sms:
        return None
    # With at most two programs a multiprocessor, each needs more loads in flight. With many waves of programs, three of
    # them should fit a multiprocessor, so that the last wave is short.
    deep, many = programs <= 2 * shape.num_sms, programs > 4 * shape.num_sms
    return DecodePlan(Tile(block_m, block_n, num_warps=4, num_stages=5 if deep else 2 if many else 3), 1, 1)
