from __future__ import annotations

import dataclasses
from itertools import product

import pytest

from draftline.kernels.triton.attention.decode_plan import MAX_QUERIES
from draftline.kernels.triton.attention.parts_plan import division, is_uneven, plan_uneven, plan_uneven_short
from draftline.kernels.triton.attention.plan import SHORT_QUERY, AttentionShape
from draftline.kernels.triton.device import DeviceLimits

H200 = DeviceLimits.known(90, 132)
LLAMA_8B = AttentionShape(group=4, num_kv_heads=8, head_dim=128, limits=H200)
QWEN3 = dataclasses.replace(LLAMA_8B, group=2)
SMOLLM2 = AttentionShape(group=3, num_kv_heads=3, head_dim=64, limits=H200)


def lengths(rows: int, usual: int, *longer: int) -> list[int]:
    return [usual] * (rows - len(longer)) + list(longer)


@pytest.mark.parametrize(
    ("query_len", "context_lens", "prompts", "expected"),
    [
        (1, lengths(64, 300), 0, False),
        (1, lengths(64, 300, 700), 0, False),
        (1, lengths(64, 300, 2000), 0, True),
        (1, lengths(64, 3500), 0, False),
        (1, lengths(8, 300, 4000), 0, True),
        (1, lengths(16, 500), 0, False),
        (1, lengths(16, 1000), 0, False),
        (1, lengths(64, 150, 1500), 0, True),
        (1, lengths(64, 180, *[1500] * 8), 0, True),
        (1, lengths(64, 500), 0, False),
        (1, lengths(32, 180, *[1000] * 16), 0, False),
        (1, lengths(1, 4000), 0, False),
        (1, lengths(1, 100_000), 2, True),
        (1, lengths(63, 300, 2000), 1, True),
        (1, lengths(63, 3500), 1, False),
        (1, [], 3, False),
        (5, lengths(64, 300, 4000), 0, True),
        (5, lengths(24, 300, 1000), 0, True),
        (5, lengths(60, 300, 4000), 3, True),
    ],
)
def test_histories_of_wide_heads_are_divided_where_some_are_much_longer(
    query_len: int, context_lens: list[int], prompts: int, expected: bool
) -> None:
    """As measured on an H200."""
    assert is_uneven(QWEN3, query_len, context_lens, prompts, bound=4096) == expected


@pytest.mark.parametrize(
    ("query_len", "context_lens", "prompts", "expected"),
    [
        (1, lengths(4, 150, 1500), 0, False),
        (1, lengths(8, 150, 1500), 0, True),
        (4, lengths(16, 150, 1500, 1500), 0, True),
        (1, lengths(16, 500), 0, False),
        (1, lengths(64, 150, 900), 0, True),
        (4, list(range(40, 600, 9)), 0, True),
        (4, lengths(64, 250), 0, False),
        (4, lengths(64, 600), 0, False),
        (1, list(range(40, 1000, 15)), 0, True),
        (1, lengths(120, 300), 0, False),
        (4, lengths(64, 150, *[1200] * 8), 0, True),
        (1, lengths(64, 1000), 0, False),
        (1, lengths(64, 150, 700), 0, False),
        (1, lengths(128, 150), 0, False),
        (1, lengths(128, 180, *[1500] * 16), 0, True),
        (1, lengths(63, 150, 1500), 1, True),
        (1, lengths(63, 900), 1, False),
        (4, lengths(63, 180, *[1000] * 32), 1, False),
        (4, lengths(30, 180, *[1200] * 8), 2, True),
        (4, lengths(63, 120), 1, False),
        (5, list(range(40, 600, 9)), 65, False),
    ],
)
def test_histories_of_narrow_heads_are_divided_where_a_program_would_have_several_tiles(
    query_len: int, context_lens: list[int], prompts: int, expected: bool
) -> None:
    """As measured on an H200."""
    assert is_uneven(SMOLLM2, query_len, context_lens, prompts, bound=4096) == expected


def test_states_of_divided_histories_take_little_memory() -> None:
    for longest, rows, context in product((1, 5), (8, 256), (4096, 131_072)):
        for plan in (
            plan_uneven(LLAMA_8B, (longest,) * rows, (context,) * rows),
            plan_uneven_short(LLAMA_8B, (300, *[longest] * rows), (context,) * (rows + 1)),
        ):
            assert plan is not None
            assert plan.num_splits == 1
            tile_bytes = LLAMA_8B.state_bytes(context) // LLAMA_8B.num_tiles(context)
            assert 0 < plan.max_part_tiles * longest * tile_bytes <= 64 << 20


def test_long_verifies_are_not_divided() -> None:
    assert plan_uneven(LLAMA_8B, (MAX_QUERIES + 1,) * 8, (4096,) * 8) is None
    assert plan_uneven(LLAMA_8B, (1, 300), (4096,) * 2) is None
    plan = plan_uneven_short(LLAMA_8B, (300, *[SHORT_QUERY] * 8), (4096,) * 9)
    assert plan is not None
    assert plan.tiles_per_row > 1
    assert not plan.max_part_tiles
    assert not is_uneven(LLAMA_8B, SHORT_QUERY, lengths(60, 300, 4000), prompts=1, bound=4096)


def test_prompts_alone_are_not_divided() -> None:
    assert plan_uneven_short(LLAMA_8B, (300, 400), (4096,) * 2) is None


def test_histories_are_not_divided_where_the_states_of_all_would_not_fit() -> None:
    """Those of the last rows would be left out, whichever these are."""
    narrow = dataclasses.replace(LLAMA_8B, head_dim=64)
    assert is_uneven(narrow, 5, lengths(128, 300, 20_000), 0, bound=32_768)
    assert not is_uneven(narrow, 5, lengths(128, 1000, 20_000), 0, bound=32_768)
    assert is_uneven(narrow, 1, lengths(128, 1000, 20_000), 0, bound=32_768)


def test_many_rows_of_narrow_heads_have_small_programs_for_parts() -> None:
    def warps(shape: AttentionShape) -> list[int]:
        plans = [plan_uneven(shape, (1,) * rows, (4096,) * rows) for rows in (8, 16, 32, 128)]
        return [plan.tile.num_warps for plan in plans if plan is not None]

    assert warps(SMOLLM2) == [2, 2, 1, 1]
    assert warps(QWEN3) == [2, 2, 2, 2]


def test_the_last_program_joins_where_few_histories_of_single_queries_have_parts() -> None:
    """A launch that joins them takes as long for a few as for all. Of verifies, or many histories, one program would take longer."""
    contexts = (4096,) * 40

    def joins(shape: AttentionShape, longest: int) -> list[bool]:
        alone = plan_uneven(shape, (longest,) * 40, contexts)
        beside = plan_uneven_short(shape, (300, *(longest,) * 39), contexts)
        return [plan is not None and plan.last_joins for plan in (alone, beside)]

    assert joins(QWEN3, 1) == [True, True]
    assert joins(SMOLLM2, 1) == [False, True]
    assert joins(QWEN3, 5) == joins(SMOLLM2, 5) == [False, False]


def test_there_are_parts_enough_for_all_rows() -> None:
    """Each history has one at least, and as many again divide the longer ones."""
    for rows in (1, 16, 200, 512):
        narrow, wide = division(3, 64, (1,) * rows, H200), division(8, 128, (1,) * rows, H200)
        assert narrow.every
        assert narrow.max_parts >= 2 * rows
        assert not wide.every
        beside_prompts = division(3, 64, (*(1,) * rows, 300), H200)
        assert beside_prompts.every
        assert beside_prompts.max_parts >= 2 * rows
