"""Planning of decodes and verifies on the host: how many programs share a history, and what each of them holds.

Few programs share histories, and a second launch joins their tiles. Many do not: each has a history of its own, and joins the tiles
itself. All is measured on an H200 (docs/tuning.md#few-sequences). As in `plan.py`, only bounds are known here.

`plan_decode` is for batches of such rows alone, whose launch also rotates and writes the new keys. `plan_short` is for such rows of any
other batch, whose keys are in the cache.

Not here: histories that are divided by their lengths (`parts_plan.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from draftline.kernels.triton.attention.plan import (
    MAX_SPLITS,
    SHORT_QUERY,
    AttentionShape,
    Tile,
    have_room,
    longest_short,
    max_lanes,
    next_power_of_2,
    num_splits,
)
from draftline.kernels.triton.overlap import AT_ONCE, PREPARED

MAX_QUERIES = 16
"""The longest query that one launch can rotate, write and attend with."""

WIDE_HEAD = 128
"""The size of heads from which on the memory is the limit of so few programs as a device has multiprocessors."""

_SMALL_MODEL = 2048
"""The most columns of all query heads of a model whose launches are so short that attention should leave them room."""

_SHARED_BY = 16
"""Programs of wide heads that share a decode's history load tiles ahead where they are at most so many."""

AHEAD, _SHARED_AHEAD = (7, 5, 3), 5
"""Stages of a pipeline that has three tiles of keys and values on their way, or two, or one. A tile's addresses come from the block
table, and Triton gives half of the stages to that load. Programs that share a history have two."""

_WARPS_PER_SM = 8
"""Warps whose registers fit a multiprocessor where heads are wide, or twice as many with narrow ones."""

_TWO_WARPS = 2048
"""Elements of a verify's tile, lanes times columns, that the registers of two warps hold."""

_LONG_VERIFY = MAX_QUERIES // 2
"""Longer verifies are rare: each has one pipeline and one number of warps, since every choice is a kernel to compile."""

_NARROW_SHARED_BY = 12
"""Programs that share a history of narrow heads, where there are not few rows: a tile each, of up to 768 tokens."""

_FEW_TURNS = 2
"""Turns of programs with one tile on its way up to which fewer turns are best; of more programs, each has two tiles on its way."""

_START = 1.5
"""The time until a program reads at full speed, in that of the programs that a multiprocessor then runs at once."""

_MAX_STORED_BESIDE_PROMPTS = 2**26
"""Bytes of tiles' states in a step with prompts, whose activations take memory at the same time."""

_SHARED_BESIDE_PROMPTS = 8
"""Programs that share a history in a step with prompts, at most."""

_ROWS_BESIDE_PROMPTS = 8
"""The fewest rows of a graph with prompts (`engine/runner/shapes.py`). A step of fewer rows has the same kernels."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How rows with few query tokens are divided.

    Attributes:
        tile: the tile of each program.
        queries: query tokens that the tile has room for.
        longest: the most query tokens of a row. Longer rows are prompt chunks.
        tiles_per_row: query tiles a row. Several only where the new keys are in the cache.
        num_splits: programs that share one row's history; one joins its tiles itself.
        max_tiles: the most key tiles of a history.
        early: whether they load their first tile before they wait for the kernel before, where it is settled what that reads.
        max_part_tiles: the most tiles of histories that are divided into parts; 0: none is.
        last_joins: whether the last program with a part of a history joins its tiles, not a second launch.
        starts_next: when attention and join let the next kernel start, as `overlap.py` names the times.
    """

    tile: Tile
    queries: int
    longest: int
    num_splits: int
    max_tiles: int
    tiles_per_row: int = 1
    early: bool = False
    max_part_tiles: int = 0
    last_joins: bool = False
    starts_next: int = PREPARED.value


@dataclass(frozen=True, slots=True)
class _Sharing:
    """How programs share histories.

    Attributes:
        num_splits: programs a history, at most; 1 if they share none.
        num_warps: warps a program.
        num_stages: see `Tile`.
        starts_next: see `DecodePlan`.
    """

    num_splits: int
    num_warps: int
    num_stages: int = 2
    starts_next: int = PREPARED.value


_UNSHARED = _Sharing(1, 2)


@lru_cache(maxsize=64)
def plan_decode(shape: AttentionShape, query_lens: tuple[int, ...], context_lens: tuple[int, ...]) -> DecodePlan | None:
    """The plan of a batch of rows with few query tokens each; None if one launch cannot rotate, write and attend with them.

    Args:
        shape: the model and the device.
        query_lens: each row's query length, or an upper bound of it.
        context_lens: each row's context length, or an upper bound of it.
    """
    longest, rows = max(query_lens, default=0), len(query_lens)
    block_m = tile_height(shape, longest)
    if block_m is None:
        return None
    context = max(context_lens)
    sharing = _sharing(shape, rows, longest, context) if have_room(shape, rows * longest, context) else _UNSHARED
    splits = min(sharing.num_splits, shape.num_tiles(context), MAX_SPLITS)
    large = needs_four_warps(shape, longest, block_m)
    if splits == 1:
        num_warps = 4 if large and longest > _LONG_VERIFY else 2
        tile = _unshared(shape, Tile(block_m, shape.key_tile, num_warps, AHEAD[-1]), rows, longest)
    else:
        tile = Tile(block_m, shape.key_tile, 4 if large else sharing.num_warps, sharing.num_stages)
        if programs_per_sm(shape, tile) < 2:  # a device with little shared memory
            tile = replace(tile, num_stages=2)
    queries = 1 if longest == 1 else min(block_m // shape.group, MAX_QUERIES)
    # More rows would hold more tiles in registers than they gain by it.
    early = shape.head_dim < WIDE_HEAD and rows == longest == 1
    return DecodePlan(
        tile, queries, longest, splits, shape.num_tiles(context), early=early, starts_next=sharing.starts_next
    )


def tile_height(shape: AttentionShape, longest: int) -> int | None:
    """The rows of a tile with so many query tokens; None if one launch cannot rotate, write and attend with them."""
    lanes = longest * shape.group
    if not 1 <= longest <= MAX_QUERIES or (longest > 1 and lanes > max_lanes(shape)):
        return None
    return max(16, next_power_of_2(lanes))


def needs_four_warps(shape: AttentionShape, longest: int, block_m: int) -> bool:
    """Whether a verify's tile needs the registers of four warps."""
    return longest > 1 and block_m * next_power_of_2(shape.head_dim) > _TWO_WARPS


@lru_cache(maxsize=64)
def plan_short(shape: AttentionShape, query_lens: tuple[int, ...], context_lens: tuple[int, ...]) -> DecodePlan | None:
    """The plan of a batch's decodes and verifies whose keys are in the cache already; None if it has none.

    The arguments are those of `plan_decode`.
    """
    longest = longest_short(query_lens)
    if not longest:
        return None
    rows, context = len(query_lens), max(context_lens)
    if max(query_lens) <= SHORT_QUERY and plan_decode(shape, query_lens, context_lens) is None:
        return _in_tiles(shape, rows, longest, context)
    return _with_prompts(shape, rows, longest, context)


def _with_prompts(shape: AttentionShape, rows: int, longest: int, context: int) -> DecodePlan:
    """Of a batch with prompts, or of its tokens that decide. Any of its rows may have few query tokens, and any history.

    There are few kinds of launches, so that a step by operation finds its kernels among those of the graphs of such batches
    (`engine/runner/shapes.py`): verifies have one of two tiles, and histories are shared if rows are few and their states fit.
    """
    block_m = max(16, next_power_of_2(shape.group))
    if longest * shape.group > block_m:
        block_m = max(block_m, max_lanes(shape))
    queries = 1 if longest == 1 else block_m // shape.group
    tiles_per_row = -(-longest // queries)
    tiles = max(rows, _ROWS_BESIDE_PROMPTS) * tiles_per_row
    programs, sms = tiles * shape.num_kv_heads, shape.limits.num_sms
    if programs <= sms and have_room(shape, rows * longest, context, _MAX_STORED_BESIDE_PROMPTS):
        room = num_splits(shape, tiles, context, rows * longest)
        splits, num_stages = max(min(room, _SHARED_BESIDE_PROMPTS), 2), 2
    else:
        # Three tiles of keys on their way, or two of wide heads, or one where the chunks' programs would lack the room.
        wide, many = shape.head_dim >= WIDE_HEAD, longest > 1 or programs > 2 * sms
        splits, num_stages = 1, AHEAD[2] if wide and many else AHEAD[1] if wide else AHEAD[0]
    tile = Tile(block_m, shape.key_tile, 2 if block_m <= 32 else 4, num_stages)
    for fewer in (AHEAD[1], 2):
        if programs_per_sm(shape, tile) < 2:  # a device with little shared memory
            tile = replace(tile, num_stages=min(num_stages, fewer))
    return DecodePlan(tile, queries, longest, splits, shape.num_tiles(context), tiles_per_row)


def _in_tiles(shape: AttentionShape, rows: int, longest: int, context: int) -> DecodePlan:
    """Of verifies that are too long for `plan_decode`: several tiles a row."""
    block_m = max(min(max_lanes(shape), next_power_of_2(longest * shape.group)), 16, next_power_of_2(shape.group))
    queries = block_m // shape.group
    tiles_per_row = -(-longest // queries)
    splits = num_splits(shape, rows * tiles_per_row, context, rows * longest)
    tile = Tile(block_m, shape.key_tile, 2 if block_m <= 32 else 4, AHEAD[-1])
    return DecodePlan(tile, queries, longest, splits, shape.num_tiles(context), tiles_per_row)


def _sharing(shape: AttentionShape, rows: int, longest: int, context: int) -> _Sharing:
    """How so many rows share histories: where there are few programs, and with narrow heads still where there are some more."""
    programs, sms = rows * shape.num_kv_heads, shape.limits.num_sms
    room = num_splits(shape, rows, context, rows * longest)
    if shape.head_dim >= WIDE_HEAD:
        if programs > sms:
            return _UNSHARED
        if rows == 1:
            small = shape.group * shape.num_kv_heads * shape.head_dim <= _SMALL_MODEL
            return _Sharing(room, 2 if small and longest == 1 else 4, starts_next=AT_ONCE.value)
        # Two warps hide less of a program's waits, but more programs fit a multiprocessor.
        return _Sharing(room, 2 if longest == 1 else 4, _SHARED_AHEAD if room <= _SHARED_BY else 2)
    return _sharing_of_narrow_heads(programs / sms, longest, room)


def _sharing_of_narrow_heads(histories: float, longest: int, room: int) -> _Sharing:
    """How rows with narrow heads share histories, as is fastest with SmolLM2 and histories of 120 to 500 tokens.

    In most larger batches, sharing saves less than the second launch takes. Verifies have more states to join.

    Args:
        histories: rows times key/value heads, for each multiprocessor.
        longest: the most query tokens of a row.
        room: the most programs that may share a history.
    """
    # Small programs leave room for the kernels that follow.
    small = _Sharing(room, 4, starts_next=AT_ONCE.value)
    shared = _Sharing(_NARROW_SHARED_BY, 2)
    if histories <= 1 / 8:
        return small
    if longest == 1:
        if histories <= 1 / 4:
            return shared
        if histories <= 1 / 2:
            return small
        return shared if 1 < histories <= 1.6 else _UNSHARED
    if histories <= 1 / 4:
        return replace(small, num_splits=_NARROW_SHARED_BY)
    return shared if histories <= 1.4 or histories * longest <= 5 else _UNSHARED


def _unshared(shape: AttentionShape, tile: Tile, rows: int, longest: int) -> Tile:
    """The tile of programs that have a history each, from the one with the shallow pipeline: with that which reads all histories soonest.

    More stages read a history sooner, but fewer programs fit a multiprocessor. Those that do not fit run after the others.
    """
    sms, programs = shape.limits.num_sms, rows * shape.num_kv_heads
    middle = replace(tile, num_stages=AHEAD[1])
    if (
        longest == 1
        and programs > _FEW_TURNS * sms * programs_per_sm(shape, tile)
        and programs_per_sm(shape, middle) > 1
    ):
        # Programs of many turns do not end together, so that a turn more or less hardly counts.
        return middle
    if longest > _LONG_VERIFY:
        return tile
    # Most verifies compute more with each tile.
    large = longest > 1 and (shape.head_dim >= WIDE_HEAD or needs_four_warps(shape, longest, tile.block_m))
    choices = []
    for num_stages in AHEAD[1:] if large else AHEAD:
        choice = replace(tile, num_stages=num_stages, num_warps=4 if large and num_stages > 3 else tile.num_warps)
        at_once = programs_per_sm(shape, choice)
        if at_once > 1 or num_stages == AHEAD[-1]:
            turns = -(-programs // (sms * max(at_once, 1)))
            each = -(-programs // sms) if turns == 1 else at_once
            # Of equals, the deeper one, unless so many programs hide each other's waits.
            choices.append((turns * (each + _START), -num_stages if each <= 4 else num_stages, choice))
    return min(choices, key=lambda choice: choice[:2])[2]


def programs_per_sm(shape: AttentionShape, tile: Tile) -> int:
    """The programs that fit a multiprocessor."""
    own = ((tile.num_stages - 1) * tile.block_n + 2 * tile.block_m) * shape.row_bytes
    warps = _WARPS_PER_SM * (1 if shape.head_dim >= WIDE_HEAD else 2)
    # The device itself takes a kilobyte of each.
    return min((shape.limits.shared_bytes + 1024) // (own + 1024), warps // tile.num_warps)
