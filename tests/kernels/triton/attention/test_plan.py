from __future__ import annotations

import dataclasses

from draftline.kernels.triton.attention.decode_plan import plan_decode, plan_short
from draftline.kernels.triton.attention.plan import (
    MAX_SPLITS,
    SHORT_QUERY,
    AttentionShape,
    ChunkPlan,
    num_splits,
    plan_chunks,
)
from draftline.kernels.triton.device import DeviceLimits

H200 = DeviceLimits.known(90, 132)
LLAMA_8B = AttentionShape(group=4, num_kv_heads=8, head_dim=128, limits=H200)


def chunks_of(shape: AttentionShape, lengths: tuple[int, ...], longest_short: int = 0) -> ChunkPlan:
    plan = plan_chunks(shape, lengths, sum(lengths), longest_short)
    assert plan is not None
    return plan


def test_a_batch_without_chunks_has_no_plan_of_them() -> None:
    assert plan_chunks(LLAMA_8B, (), 0, 0) is None
    assert plan_chunks(LLAMA_8B, (0, 0), 0, 0) is None
    assert plan_chunks(LLAMA_8B, (1, SHORT_QUERY), 33, SHORT_QUERY) is None


def test_search_tiles_cover_every_division_of_tokens_into_rows() -> None:
    for lengths in [(33, 33, 33), (1000,), (40, 1, 1, 64, 65)]:
        plan = chunks_of(LLAMA_8B, lengths)
        queries = plan.tile.block_m // LLAMA_8B.group
        start, last = 0, 0
        for row, length in enumerate(lengths):
            last = start // queries + row + -(-length // queries)
            start += length
        assert last <= plan.num_tiles


def test_few_rows_are_split_and_many_are_not() -> None:
    assert num_splits(LLAMA_8B, 1, 100_000, 1) * LLAMA_8B.num_kv_heads == 2 * LLAMA_8B.limits.num_sms
    assert num_splits(dataclasses.replace(LLAMA_8B, num_kv_heads=1), 1, 100_000, 1) == MAX_SPLITS
    assert num_splits(LLAMA_8B, 256, 1000, 256) == 1


def test_states_that_would_fill_the_memory_are_not_kept() -> None:
    assert num_splits(LLAMA_8B, 1, 100_000, 10) > 1
    assert num_splits(LLAMA_8B, 1, 100_000, 11) == 1


def test_the_tile_of_keys_depends_on_the_model_alone() -> None:
    """It belongs to the arithmetic: every launch of every batch, and of every device, has the same."""
    for shape in (
        LLAMA_8B,
        dataclasses.replace(LLAMA_8B, limits=DeviceLimits.known(86, 20)),
        dataclasses.replace(LLAMA_8B, group=1),
    ):
        for lengths in ((1,), (1,) * 300, (5, 3), (16,) * 16, (40, 1, 5), (2000,), (33, 33)):
            contexts = (2000,) * len(lengths)
            plans = (
                plan_decode(shape, lengths, contexts),
                plan_short(shape, lengths, contexts),
                plan_chunks(shape, lengths, sum(lengths), 1),
            )
            tiles = {plan.tile.block_n for plan in plans if plan is not None}
            assert tiles == {64}
    for head_dim, wide, tile in ((64, False, 64), (80, False, 64), (256, False, 32), (512, False, 16), (128, True, 16)):
        assert dataclasses.replace(LLAMA_8B, head_dim=head_dim, wide=wide).key_tile == tile


def test_no_more_splits_than_key_tiles() -> None:
    assert num_splits(LLAMA_8B, 1, 64, 64) == 1
    assert num_splits(LLAMA_8B, 1, 200, 64) == 4


def test_beside_decodes_chunks_leave_them_room() -> None:
    """Decodes start when all programs of chunks have. Of many chunks, the device starts the next one where it has room."""
    for chunk, at_once in ((40, 8 * 5), (500, 8 * 34), (900, 264), (4000, None)):
        plan = chunks_of(LLAMA_8B, (1,) * 40 + (chunk,), longest_short=1)
        assert (plan.at_once, plan.min_query) == (None if at_once is None else min(at_once, 264), 2)
    assert chunks_of(LLAMA_8B, (512,)).at_once is None


def test_many_chunks_of_narrow_heads_have_three_programs_a_multiprocessor() -> None:
    """Where the matrix units read shared memory. A few programs keep their registers: no multiprocessor has a third one."""
    narrow = AttentionShape(group=3, num_kv_heads=3, head_dim=64, limits=H200)
    few, many = chunks_of(narrow, (1,) * 40 + (900,), 1), chunks_of(narrow, (1,) * 40 + (3000,), 1)
    assert (few.at_once, few.registers) == (3 * 45, None)
    assert (many.at_once, many.registers) == (3 * 132, 168)
    assert chunks_of(narrow, (3000,)).registers == 168
    for other in (LLAMA_8B, *[dataclasses.replace(narrow, limits=DeviceLimits.known(at, 132)) for at in (80, 120)]):
        plan = chunks_of(other, (1,) * 40 + (2000,), 1)
        assert (plan.at_once, plan.registers) in ((264, None), (None, None))
