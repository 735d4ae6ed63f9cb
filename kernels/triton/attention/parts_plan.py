"""Planning of decodes and verifies whose histories are divided into parts, with a program each (`inputs/history_parts.py`).

`is_uneven` decides on the host, by lengths, which steps do so. `division` is how histories are divided. `plan_uneven` and
`plan_uneven_short` are the plans of such batches, in the places of `plan_decode` and `plan_short` (`decode_plan.py`). All is fitted to
measurements on an H200 (docs/tuning.md#uneven-lengths), of narrow heads with a single model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from draftline.kernels.limits import LEAST_LONG_HISTORY
from draftline.kernels.triton.attention.decode_plan import (
    AHEAD,
    MAX_QUERIES,
    WIDE_HEAD,
    DecodePlan,
    needs_four_warps,
    plan_decode,
    plan_short,
    programs_per_sm,
    tile_height,
)
from draftline.kernels.triton.attention.plan import SHORT_QUERY, AttentionShape, Tile
from draftline.kernels.triton.device import DeviceLimits

_PARTS_PER_SM, _MANY_PARTS_PER_SM, _MANY_BESIDE_PROMPTS = 4, 12, 8
"""Parts times key/value heads, for each multiprocessor: where only long histories have parts, and where all have, alone and beside
prompts. With fewer there could be as many long histories as parts."""

_FEW_ROWS = 16
"""Rows of narrow heads up to which a part's program has two warps: more rows have more programs."""

_READ_AT_ONCE = 100
"""Columns of keys that a multiprocessor reads, where it has enough programs, in the time in which a program with three tiles on their way
reads a token. `is_uneven` has times in such tokens."""

_WAITS = {AHEAD[0]: 1.0, AHEAD[1]: 1.4, AHEAD[2]: 2.5}
_NOTHING_AHEAD = 3.0
"""How much longer a program takes, by the stages of its pipeline."""

_JOINED, _BESIDE_PROMPTS = 300, 2
"""The time that joining the tiles takes, where programs shared no history, and how much longer it takes beside prompts."""

_JOINED_NARROW, _JOINED_AGAIN = 100, 40
"""The same for narrow heads, and how much longer joining takes there where programs shared histories."""

_JOINED_QUERY = 0.45
"""What each query of a row adds to it, padding included: programs of the launch that joins."""

_SMALL_TILE = 16
"""Rows of a tile that a single warp has the registers for."""

_GAIN = 1.1
"""How much sooner all histories of wide heads must be read to divide them. Where all have parts, times are known better."""

_STORED = 1 / 64
"""How much longer reading takes for each query of a key/value head, where the states of all tiles are stored and read again."""

_MAX_STORED = 2**26
"""Bytes of the states of divided histories. Where they would take more, the last histories have a program each."""

LEAST_PART = 64
"""The fewest tokens of a part: a tile of keys, or several. Parts are multiples of it. Beside prompts a part has twice as many, or more."""

_LEAST_LONG_NARROW = 256
"""As `LEAST_LONG_HISTORY`, for narrow heads: where no history is longer, none is divided."""

_LEAST_LONG_PART = 2
"""The fewest tokens of a long history's part, for each column of a head: wider heads had longer parts in the fastest division."""


@dataclass(frozen=True, slots=True)
class Division:
    """How the histories of a batch are divided.

    Attributes:
        every: whether all histories have parts, or only long ones.
        max_parts: the most parts of all histories.
        least_part: the fewest tokens of a part.
    """

    every: bool
    max_parts: int
    least_part: int


def division(kv_heads: int, head_dim: int, query_lens: tuple[int, ...], limits: DeviceLimits) -> Division:
    """The division of a batch with these query lengths, or upper bounds of them."""
    if head_dim < WIDE_HEAD:
        beside_prompts = max(query_lens, default=0) > MAX_QUERIES
        parts = (_MANY_BESIDE_PROMPTS if beside_prompts else _MANY_PARTS_PER_SM) * limits.num_sms // kv_heads
        # Each history has a part at least, and as many again divide the longer ones.
        return Division(True, max(parts, 2 * len(query_lens)), 2 * LEAST_PART if beside_prompts else LEAST_PART)
    # A history that is divided has two parts at least.
    return Division(False, max(_PARTS_PER_SM * limits.num_sms // kv_heads, 2), _LEAST_LONG_PART * head_dim)


@lru_cache(maxsize=64)
def plan_uneven(shape: AttentionShape, query_lens: tuple[int, ...], context_lens: tuple[int, ...]) -> DecodePlan | None:
    """The plan of a batch whose `HistoryParts` are known, as `plan_decode`'s: rows without parts have a program each.

    There are few kinds of launches for all numbers of rows, since each is a kernel to compile.
    """
    longest, rows = max(query_lens, default=0), len(query_lens)
    block_m = tile_height(shape, longest)
    if block_m is None:
        return None
    context = max(context_lens)
    queries = 1 if longest == 1 else min(block_m // shape.group, MAX_QUERIES)
    if needs_four_warps(shape, longest, block_m):
        tile = _parts_tile(shape, block_m, 4, AHEAD[1])
    elif shape.head_dim >= WIDE_HEAD:
        tile = _parts_tile(shape, block_m, 2, AHEAD[1])
    else:
        tile = _parts_tile(shape, block_m, 2 if rows <= _FEW_ROWS else 1, AHEAD[2])
    return DecodePlan(
        tile,
        queries,
        longest,
        1,
        shape.num_tiles(context),
        max_part_tiles=_part_tiles(shape, rows, longest, context),
        last_joins=longest == 1 and shape.head_dim >= WIDE_HEAD,
    )


@lru_cache(maxsize=64)
def plan_uneven_short(
    shape: AttentionShape, query_lens: tuple[int, ...], context_lens: tuple[int, ...]
) -> DecodePlan | None:
    """The plan of a batch's decodes and verifies beside prompts, as `plan_short`'s, where the batch's `HistoryParts` are known."""
    plan = plan_short(shape, query_lens, context_lens)
    if plan is None or plan.tiles_per_row > 1:  # rare: long verifies of large groups
        return plan
    # The chunks' programs need room, and small ones leave the most.
    num_warps = 1 if shape.head_dim < WIDE_HEAD and plan.tile.block_m <= _SMALL_TILE else plan.tile.num_warps
    tile = _parts_tile(shape, plan.tile.block_m, num_warps, AHEAD[2])
    tiles = _part_tiles(shape, len(query_lens), plan.longest, max(context_lens))
    return replace(plan, tile=tile, num_splits=1, max_part_tiles=tiles, last_joins=plan.longest == 1)


def _parts_tile(shape: AttentionShape, block_m: int, num_warps: int, num_stages: int) -> Tile:
    """The tile of programs that may have a part of a history."""
    tile = Tile(block_m, shape.key_tile, num_warps, num_stages)
    # A device with little shared memory has no room for two programs of such a pipeline.
    return tile if programs_per_sm(shape, tile) > 1 else replace(tile, num_stages=2)


def _part_tiles(shape: AttentionShape, rows: int, longest: int, context: int) -> int:
    """The most tiles of all divided histories together."""
    tiles = shape.num_tiles(context)
    return min(2 * rows * tiles, _MAX_STORED * tiles // (longest * shape.state_bytes(context)))


@dataclass(frozen=True, slots=True)
class _Rule:
    """What `is_uneven` knows of a step before it knows the lengths. Times are in tokens, as `_READ_AT_ONCE` says.

    Attributes:
        key_tile: keys of a tile.
        share: tokens of which each program reads a tile where no history is divided.
        later: the time that each later tile of a program takes. Its first one takes ``key_tile``.
        token_time: the time in which all programs together read a token.
        division: how histories would be divided.
        stored: the time that storing and reading states adds to it, as a share.
        joining: the time that joining would add.
        gain: how much sooner all histories must be read.
        max_tiles: the most tiles of divided histories.
    """

    key_tile: int
    share: int
    later: float
    token_time: float
    division: Division
    stored: float
    joining: float
    gain: float
    max_tiles: int

    def alone(self, length: int) -> float:
        """The time in which a program reads its share of a history, if no other one is in its way."""
        return self.key_tile + (length - 1) // self.share * self.later


@lru_cache(maxsize=1024)
def _rule(shape: AttentionShape, query_len: int, rows: int, prompts: int, bound: int) -> _Rule | None:
    """The rule for steps of so many rows; None if their histories are never divided. See `is_uneven`."""
    query_lens, bounds = (SHORT_QUERY + 1,) * prompts + (query_len,) * rows, (bound,) * (rows + prompts)
    plan = (plan_short if prompts else plan_decode)(shape, query_lens, bounds)
    if plan is None or plan.tiles_per_row > 1:
        return None
    divided = division(shape.num_kv_heads, shape.head_dim, query_lens, shape.limits)
    return _Rule(
        shape.key_tile,
        plan.num_splits * shape.key_tile,
        _WAITS.get(plan.tile.num_stages, _NOTHING_AHEAD) * shape.key_tile,
        shape.num_kv_heads * shape.head_dim / shape.limits.num_sms / _READ_AT_ONCE,
        divided,
        stored=shape.group * query_len * _STORED if divided.every else 0.0,
        joining=_joining(plan, divided, (rows + prompts) * query_len) * (_BESIDE_PROMPTS if prompts else 1),
        gain=1.0 if divided.every else _GAIN,
        max_tiles=_part_tiles(shape, rows, query_len, bound),
    )


def _joining(plan: DecodePlan, divided: Division, queries: int) -> float:
    """The time that joining the tiles of so many queries would add to a plan."""
    if plan.num_splits > 1:
        return _JOINED_AGAIN if divided.every else 0
    return _JOINED_NARROW + _JOINED_QUERY * queries if divided.every else _JOINED


def is_uneven(shape: AttentionShape, query_len: int, context_lens: Sequence[int], prompts: int, bound: int) -> bool:
    """Whether decodes or verifies are faster where histories are divided into parts.

    Args:
        shape: the model and the device.
        query_len: the most query tokens of a row.
        context_lens: of each row that decodes or verifies.
        prompts: the rows beside them, prompts and their graph's padding; 0 if none computes a prompt.
        bound: that of context lengths, for which plans are made.
    """
    longest, rows = max(context_lens, default=0), len(context_lens)
    least_long = _LEAST_LONG_NARROW if shape.head_dim < WIDE_HEAD else LEAST_LONG_HISTORY
    if longest <= least_long or rows + prompts == 1:
        return False
    rule = _rule(shape, query_len, rows, prompts, bound)
    if rule is None:
        return False
    # The longest history is still read when the others have been, or, where few programs read, takes longest by itself.
    total, alone = sum(context_lens), rule.alone(longest)
    reading = total * rule.token_time
    undivided = max(reading + alone - rule.alone(-(-total // rows)), alone)
    part = rule.division.least_part
    if rule.division.every:
        # As the device divides them (`inputs/history_parts.py`), where all states have room.
        tokens = -(-total // (rule.division.max_parts - rows))
        part = max(part, -(-tokens // LEAST_PART) * LEAST_PART)
        tiles = part // rule.key_tile
        # Counting the parts takes the host longer than this bound of their number, which nearly all steps keep.
        if (total // part + rows) * tiles > rule.max_tiles:
            parts = sum([-(-length // part) for length in context_lens])
            if parts * tiles > rule.max_tiles:
                return False
    return undivided > rule.gain * (reading * (1 + rule.stored) + part + rule.joining)
