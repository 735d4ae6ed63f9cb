from __future__ import annotations

import dataclasses

import pytest

from draftline.kernels.triton.attention.decode_plan import (
    MAX_QUERIES,
    DecodePlan,
    plan_decode,
    plan_short,
)
from draftline.kernels.triton.attention.plan import SHORT_QUERY, AttentionShape
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.overlap import AT_ONCE, PREPARED

H200 = DeviceLimits.known(90, 132)
LLAMA_8B = AttentionShape(group=4, num_kv_heads=8, head_dim=128, limits=H200)
QWEN3 = dataclasses.replace(LLAMA_8B, group=2)
SMOLLM2 = AttentionShape(group=3, num_kv_heads=3, head_dim=64, limits=H200)


def planned(shape: AttentionShape, rows: int, longest: int = 1, context: int = 4096) -> DecodePlan:
    plan = plan_decode(shape, (longest,) * rows, (context,) * rows)
    assert plan is not None
    return plan


def test_a_decode_s_history_is_split_while_the_device_has_room() -> None:
    def splits(rows: int, context: int) -> int:
        return planned(LLAMA_8B, rows, context=context).num_splits

    assert [splits(1, context) for context in (1, 64, 65, 400)] == [1, 1, 2, 7]
    assert splits(1, 4096) > splits(8, 4096) > splits(16, 4096) > 1


def test_verifies_have_room_for_the_longest() -> None:
    for longest in range(2, MAX_QUERIES + 1):
        plan = plan_decode(LLAMA_8B, (1,) * 15 + (longest,), (500,) * 16)
        assert plan is not None
        assert longest <= plan.queries <= plan.tile.block_m // LLAMA_8B.group


def test_the_histories_of_few_verifies_are_split() -> None:
    def splits(rows: int, context: int) -> int:
        plan = planned(LLAMA_8B, rows, 5, context)
        assert 5 <= plan.queries <= plan.tile.block_m // LLAMA_8B.group
        return plan.num_splits

    assert splits(1, 64) == 1
    assert splits(1, 4096) > splits(8, 4096) > splits(16, 4096) > 1


def test_other_batches_are_no_decodes() -> None:
    assert plan_decode(LLAMA_8B, (), ()) is None
    assert plan_decode(LLAMA_8B, (1,) * 3 + (MAX_QUERIES + 1,), (50,) * 4) is None
    assert plan_decode(dataclasses.replace(LLAMA_8B, group=16), (5,) * 4, (50,) * 4) is None, "too large a tile"
    assert plan_decode(LLAMA_8B, (0, 0), (5, 5)) is None
    assert plan_decode(LLAMA_8B, (1, 0), (5, 5)) is not None


def test_histories_whose_states_would_fill_the_memory_are_not_shared() -> None:
    assert planned(LLAMA_8B, 10, context=100_000).num_splits > 1
    assert planned(LLAMA_8B, 11, context=100_000).num_splits == 1
    assert planned(SMOLLM2, 60, context=131_072).num_splits == 1
    assert planned(SMOLLM2, 60, context=131_072).tile.num_warps == 2, "that of a history each"


def test_programs_that_fill_the_device_have_a_history_each() -> None:
    """Those of narrow heads share some more: a tile takes each of them half the time."""

    def shared(shape: AttentionShape, longest: int, *rows: int) -> list[bool]:
        return [planned(shape, count, longest).num_splits > 1 for count in rows]

    for longest in (1, 5):
        assert shared(LLAMA_8B, longest, 16, 17, 300) == [True, False, False]
    assert shared(SMOLLM2, 1, 22, 23, 44, 45, 70, 71) == [True, False, False, True, True, False]
    assert shared(SMOLLM2, 2, 22, 44, 110, 111) == [True, True, True, False]
    assert shared(SMOLLM2, 5, 22, 61, 62, 128) == [True, True, False, False]


def test_few_decodes_and_verifies_of_narrow_heads_share_histories_in_three_ways() -> None:
    """Verifies have more states to join: twelve programs of the same kind suffice them."""

    def plans(longest: int, *rows: int) -> list[tuple[int, int, int]]:
        chosen = [planned(SMOLLM2, count, longest) for count in rows]
        return [(plan.num_splits, plan.tile.num_warps, plan.starts_next) for plan in chosen]

    at_once, prepared = AT_ONCE.value, PREPARED.value
    assert plans(1, 5, 6, 11, 12, 45) == [
        (35, 4, at_once),
        (12, 2, prepared),
        (12, 2, prepared),
        (14, 4, at_once),
        (12, 2, prepared),
    ]
    assert plans(5, 5, 6, 11, 12, 45) == [
        (35, 4, at_once),
        (12, 4, at_once),
        (12, 4, at_once),
        (12, 2, prepared),
        (12, 2, prepared),
    ]


def test_large_verifies_have_fewer_warps_where_all_of_them_so_run_at_once() -> None:
    tiles = [planned(LLAMA_8B, rows, longest=5).tile for rows in (32, 64)]
    assert [(tile.num_warps, tile.num_stages) for tile in tiles] == [(4, 5), (2, 3)]


def test_small_verifies_have_two_warps_and_load_as_far_ahead_as_decodes() -> None:
    large = dataclasses.replace(SMOLLM2, group=7)
    tiles = [planned(shape, 64, longest=5).tile for shape in (SMOLLM2, large)]
    assert [(tile.num_warps, tile.num_stages) for tile in tiles] == [(2, 7), (4, 5)]


def test_small_programs_let_the_next_kernel_start_at_once_and_a_single_row_of_narrow_heads_loads_early() -> None:
    def plans(shape: AttentionShape) -> list[tuple[int, bool]]:
        chosen = [planned(shape, rows, longest) for rows, longest in ((1, 1), (1, 5), (2, 1))]
        return [(plan.starts_next, plan.early) for plan in chosen]

    at_once, prepared = AT_ONCE.value, PREPARED.value
    assert plans(LLAMA_8B) == [(at_once, False), (at_once, False), (prepared, False)]
    assert plans(SMOLLM2) == [(at_once, True), (at_once, False), (at_once, False)]


def test_a_single_row_of_a_small_model_has_small_programs() -> None:
    assert [planned(shape, 1).tile.num_warps for shape in (QWEN3, LLAMA_8B)] == [2, 4]
    assert planned(QWEN3, 1, longest=5).tile.num_warps == 4


def test_programs_load_as_far_ahead_as_all_of_them_have_room() -> None:
    """So many rows that not all fit at once load further ahead, if the last ones would run alone, or if they take many turns."""

    def stages(shape: AttentionShape, rows: list[int], longest: int = 1) -> list[int]:
        return [planned(shape, count, longest).tile.num_stages for count in rows]

    assert stages(QWEN3, [1, 2, 8, 16]) == [2, 5, 5, 5]
    assert stages(QWEN3, [17, 32, 40, 48, 64, 72, 96, 128, 160, 256]) == [7, 7, 5, 5, 3, 5, 5, 3, 5, 5]
    assert stages(QWEN3, [17, 32, 40, 64], longest=5) == [5, 5, 3, 3]
    assert stages(SMOLLM2, [128, 160, 192, 256]) == [7, 7, 3, 3]


def test_a_device_with_little_shared_memory_loads_less_ahead() -> None:
    small = dataclasses.replace(QWEN3, limits=DeviceLimits.known(86, 132))
    assert [planned(small, rows).tile.num_stages for rows in (24, 48)] == [3, 3]
    assert [planned(shape, 8).tile.num_stages for shape in (QWEN3, small)] == [5, 2]


@pytest.mark.parametrize("longest", [1, 5])
@pytest.mark.parametrize("shape", [LLAMA_8B, SMOLLM2], ids=["wide", "narrow"])
def test_no_context_changes_the_kernel_of_so_many_rows_that_share_nothing(shape: AttentionShape, longest: int) -> None:
    """Steps by operation find it compiled."""
    for rows in (128, 200):
        assert len({planned(shape, rows, longest, context).tile for context in (5, 100, 100_000)}) == 1


def short(
    shape: AttentionShape, lengths: tuple[int, ...], contexts: tuple[int, ...] | None = None, context: int = 600
) -> DecodePlan:
    plan = plan_short(shape, lengths, contexts or (context,) * len(lengths))
    assert plan is not None
    return plan


def beside_prompts(shape: AttentionShape, rows: int, longest: int = 1, context: int = 600) -> DecodePlan:
    return short(shape, (longest,) * (rows - 1) + (512,), context=context)


def test_prompts_alone_have_no_short_queries() -> None:
    assert plan_short(LLAMA_8B, (), ()) is None
    assert plan_short(LLAMA_8B, (0, 512), (5, 900)) is None


def test_tiles_hold_every_short_query() -> None:
    for shape in (
        LLAMA_8B,
        SMOLLM2,
        dataclasses.replace(LLAMA_8B, group=16),
        dataclasses.replace(LLAMA_8B, float8=True),
    ):
        for longest in range(1, SHORT_QUERY + 1):
            for plan in (short(shape, (longest,) * 3), beside_prompts(shape, 9, longest)):
                assert plan.longest == longest <= plan.queries * plan.tiles_per_row
                assert plan.queries == 1 or plan.queries <= plan.tile.block_m // shape.group


def test_the_tokens_of_a_batch_with_prompts_that_decide_have_the_kernels_of_its_decodes() -> None:
    """Else a step by operation might need a kernel that no graph has: each of its rows decides one, or a verify's."""
    for rows, longest in ((2, 1), (30, 1), (64, 1), (8, 5)):
        assert short(SMOLLM2, (longest,) * rows) == beside_prompts(SMOLLM2, rows, longest)


def test_there_is_room_for_every_tile_of_a_shared_history() -> None:
    for lengths in ((1,), (5, 3), (17,) * 3, (40, 1, 5)):
        contexts = tuple(1000 + 77 * row for row in range(len(lengths)))
        plans = (plan_decode(LLAMA_8B, lengths, contexts), short(LLAMA_8B, lengths, contexts))
        for plan in plans:
            assert plan is None or plan.max_tiles * LLAMA_8B.key_tile >= max(contexts)


def test_a_short_piece_of_a_prompt_shares_out_its_history_like_a_verify() -> None:
    """Its bound is that of a long one, so that its history, too, must have room beside those of verifies."""
    plan = short(LLAMA_8B, (SHORT_QUERY + 1, 4), (3000, 200))
    assert plan.num_splits > 1
    assert plan.longest == 4
    assert plan.max_tiles * LLAMA_8B.key_tile >= 3000


def test_beside_prompts_the_rows_decide_whether_histories_are_shared_out_whose_states_fit() -> None:
    """Else a step by operation might need a kernel that no graph has."""
    for rows, shared in ((2, True), (8, True), (16, True), (17, False), (32, False), (200, False)):
        for context in (1, 64, 600, 4000):
            assert (beside_prompts(LLAMA_8B, rows, context=context).num_splits > 1) == shared


def test_states_beside_prompts_take_little_memory() -> None:
    """Activations take theirs at the same time, and a graph of so many rows was planned for the longest context."""
    for rows in (2, 8):
        for context in (4096, 32_768, 131_072):
            plan, stored = beside_prompts(LLAMA_8B, rows, context=context), rows * LLAMA_8B.state_bytes(context)
            assert (plan.num_splits > 1) == (stored <= 64 << 20)


def test_beside_prompts_verifies_have_one_of_two_tiles() -> None:
    """Else a step by operation might need a kernel that no graph has."""
    plans = [beside_prompts(LLAMA_8B, 40, longest) for longest in (2, 4, 5, 9, 16, 30)]
    assert [plan.tile.block_m for plan in plans] == [16, 16, 64, 64, 64, 64]
    assert {(plan.tile, plan.queries) for plan in plans} == {(plans[0].tile, 4), (plans[-1].tile, 16)}
    assert beside_prompts(LLAMA_8B, 40).queries == 1


def test_beside_prompts_large_programs_load_less_ahead() -> None:
    """They would lack the room that chunks take."""
    assert [beside_prompts(LLAMA_8B, rows).tile.num_stages for rows in (8, 32, 64)] == [2, 5, 3]
    assert beside_prompts(LLAMA_8B, 32, longest=5).tile.num_stages == 3
    assert [beside_prompts(SMOLLM2, rows, 5).tile.num_stages for rows in (64, 300)] == [7, 7]


def test_tiles_over_fp8_keys_stay_off_the_warpgroup_units() -> None:
    shape = dataclasses.replace(LLAMA_8B, float8=True)
    for longest in range(1, SHORT_QUERY + 1):
        for rows in (1, 32):
            plan = plan_decode(shape, (longest,) * rows, (500,) * rows)
            assert plan is None or plan.tile.block_m <= 32
            assert short(shape, (longest,) * rows).tile.block_m <= 32
        assert beside_prompts(shape, 2, longest).tile.block_m <= 32
