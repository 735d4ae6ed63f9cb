from __future__ import annotations

import dataclasses

import pytest

from draftline.kernels.triton.attention.decode_plan import MAX_QUERIES, DecodePlan, plan_decode
from draftline.kernels.triton.attention.plan import AttentionShape
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
    for longest in (1, 5):
        assert [planned(LLAMA_8B, rows, longest).num_splits > 1 for rows in (16, 17, 300)] == [True, False, False]
        assert [planned(SMOLLM2, rows, longest).num_splits > 1 for rows in (44, 110, 111)] == [True, True, False]


def test_large_verifies_have_fewer_warps_where_all_of_them_so_run_at_once() -> None:
    tiles = [planned(LLAMA_8B, rows, longest=5).tile for rows in (32, 64)]
    assert [(tile.num_warps, tile.num_stages) for tile in tiles] == [(4, 5), (2, 3)]


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
