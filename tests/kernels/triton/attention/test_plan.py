from __future__ import annotations

import dataclasses

from draftline.kernels.triton.attention.plan import (
    MAX_QUERIES,
    MAX_SPLITS,
    SHORT_QUERY,
    AttentionShape,
    max_programs,
    num_splits,
    plan_attention,
    plan_decode,
)
from draftline.kernels.triton.device import DeviceLimits

H200 = DeviceLimits.known(90, 132)
LLAMA_8B = AttentionShape(group=4, num_kv_heads=8, head_dim=128, limits=H200)


def test_decodes_are_one_launch_of_one_tile_a_row() -> None:
    (launch,) = plan_attention(LLAMA_8B, (1,) * 64, (1000,) * 64, 64)
    assert (launch.num_tiles, launch.tiles_per_row) == (64, 1)
    assert launch.min_query == 1


def test_a_decode_beside_a_prompt_chunk_has_its_own_launch() -> None:
    short, long = plan_attention(LLAMA_8B, (1, 512, 1), (900, 512, 30), 514)
    assert (short.min_query, short.max_query) == (1, 1)
    assert (long.min_query, long.max_query) == (2, 512)
    assert short.tile.block_m < long.tile.block_m


def test_no_rows_and_empty_rows_need_no_launch() -> None:
    assert plan_attention(LLAMA_8B, (), (), 0) == ()
    assert plan_attention(LLAMA_8B, (0, 0), (5, 9), 0) == ()


def test_search_tiles_cover_every_division_of_tokens_into_rows() -> None:
    for lengths in [(33, 33, 33), (1000,), (40, 1, 1, 64, 65)]:
        (*_, launch) = plan_attention(LLAMA_8B, lengths, (2000,) * len(lengths), sum(lengths))
        queries = launch.tile.block_m // LLAMA_8B.group
        start, last = 0, 0
        for row, length in enumerate(lengths):
            last = start // queries + row + -(-length // queries)
            start += length
        assert last <= launch.num_tiles


def test_few_rows_are_split_and_many_are_not() -> None:
    assert num_splits(LLAMA_8B, 1, 100_000, 1) * LLAMA_8B.num_kv_heads == 2 * LLAMA_8B.limits.num_sms
    assert num_splits(dataclasses.replace(LLAMA_8B, num_kv_heads=1), 1, 100_000, 1) == MAX_SPLITS
    assert num_splits(LLAMA_8B, 256, 1000, 256) == 1


def test_states_that_would_fill_the_memory_are_not_kept() -> None:
    assert num_splits(LLAMA_8B, 1, 100_000, 10) > 1
    assert num_splits(LLAMA_8B, 1, 100_000, 11) == 1
    assert plan_decode(LLAMA_8B, (1,) * 11, (100_000,) * 11) is None


def test_the_tile_of_keys_depends_on_the_model_alone() -> None:
    """It belongs to the arithmetic: every launch of every batch, and of every device, has the same."""
    for shape in (
        LLAMA_8B,
        dataclasses.replace(LLAMA_8B, limits=DeviceLimits.known(86, 20)),
        dataclasses.replace(LLAMA_8B, group=1),
    ):
        for lengths in ((1,), (1,) * 300, (5, 3), (16,) * 16, (40, 1, 5), (2000,), (33, 33)):
            plan = plan_decode(shape, lengths, (2000,) * len(lengths))
            launches = plan_attention(shape, lengths, (2000,) * len(lengths), sum(lengths))
            tiles = {launch.tile.block_n for launch in launches} | ({plan.tile.block_n} if plan else set())
            assert tiles == {64}
    for head_dim, wide, tile in ((64, False, 64), (80, False, 64), (256, False, 32), (512, False, 16), (128, True, 16)):
        assert dataclasses.replace(LLAMA_8B, head_dim=head_dim, wide=wide).key_tile == tile


def test_there_is_room_for_every_tile_of_a_shared_history() -> None:
    for lengths in ((1,), (5, 3), (17,) * 3, (40, 1, 5)):
        contexts = tuple(1000 + 77 * row for row in range(len(lengths)))
        plan = plan_decode(LLAMA_8B, lengths, contexts)
        assert plan is None or plan.max_tiles * LLAMA_8B.key_tile >= max(contexts)
        for launch in plan_attention(LLAMA_8B, lengths, contexts, sum(lengths)):
            mine = [c for q, c in zip(lengths, contexts, strict=True) if launch.min_query <= q <= launch.max_query]
            assert launch.num_splits == 1 or launch.max_tiles * LLAMA_8B.key_tile >= max(mine)


def test_no_more_splits_than_key_tiles() -> None:
    assert num_splits(LLAMA_8B, 1, 64, 64) == 1
    assert num_splits(LLAMA_8B, 1, 200, 64) == 4


def test_beside_prompts_verifies_of_all_lengths_have_one_tile() -> None:
    tiles = [plan_attention(LLAMA_8B, (1, length, 512), (900,) * 3, 513 + length)[0].tile for length in (1, 2, 5, 17)]
    assert tiles[0] != tiles[1] == tiles[2] == tiles[3]


def test_beside_prompts_no_history_is_shared_out() -> None:
    """Else a step might need a kernel that no graph has."""
    for decodes, context in ((1, 100_000), (7, 600), (200, 100_000)):
        lengths = (1,) * decodes + (512,)
        contexts = (context,) * decodes + (512,)
        assert {launch.num_splits for launch in plan_attention(LLAMA_8B, lengths, contexts, sum(lengths))} == {1}


def test_a_decode_s_history_is_split_while_the_device_has_room() -> None:
    def splits(rows: int, context: int) -> int:
        plan = plan_decode(LLAMA_8B, (1,) * rows, (context,) * rows)
        assert plan is not None
        return plan.num_splits

    assert [splits(1, context) for context in (1, 64, 65, 400)] == [1, 1, 2, 7]
    assert splits(1, 4096) > splits(8, 4096) > splits(16, 4096) > 1


def test_rows_that_fill_the_device_are_rotated_and_written_by_their_own_kernel() -> None:
    rows = max_programs(LLAMA_8B.limits.num_sms) // LLAMA_8B.num_kv_heads
    for length in (1, 5):
        assert plan_decode(LLAMA_8B, (length,) * rows, (500,) * rows) is not None
        assert plan_decode(LLAMA_8B, (length,) * (rows + 1), (500,) * (rows + 1)) is None


def test_few_programs_load_tiles_ahead() -> None:
    """Two on a multiprocessor: more hide each other's waits, and several programs a history have a tile each."""

    def stages(shape: AttentionShape, rows: int) -> int:
        plan, contexts = plan_decode(shape, (1,) * rows, (4000,) * rows), (4000,) * rows
        return (plan or plan_attention(shape, (1,) * rows, contexts, rows)[0]).tile.num_stages

    assert [stages(LLAMA_8B, rows) for rows in (1, 4, 8, 16, 17, 25, 32, 34, 64)] == [2, 2, 5, 5, 7, 7, 7, 3, 3]
    small = dataclasses.replace(LLAMA_8B, limits=DeviceLimits.known(86, 132))
    assert [stages(small, rows) for rows in (8, 32)] == [2, 3], "no room for two programs"
    # As long as rows are as many, no context changes the kernel: steps by operation find it compiled.
    for rows in (8, 20, 32):
        batches = [((1,) * rows, (context,) * rows) for context in (1, 100, 100_000)]
        plans = [plan_decode(LLAMA_8B, *batch) for batch in batches]
        assert len({plan.tile for plan in plans if plan is not None}) <= 1
        assert len({plan_attention(LLAMA_8B, *batch, rows)[0].tile for batch in batches}) == 1


def test_two_programs_share_a_history_where_one_is_no_faster() -> None:
    """One that loads ahead is, with wide heads, if there is shared memory for what it loads."""

    def splits(shape: AttentionShape, rows: int) -> int:
        return plan_attention(shape, (1,) * rows, (4000,) * rows, rows)[0].num_splits

    assert [splits(LLAMA_8B, rows) for rows in (17, 24, 25)] == [1, 1, 1]
    narrow = dataclasses.replace(LLAMA_8B, head_dim=64)
    assert [splits(narrow, rows) for rows in (34, 49, 50)] == [2, 2, 1]
    small = dataclasses.replace(LLAMA_8B, limits=DeviceLimits.known(86, 132))
    assert [splits(small, rows) for rows in (17, 24, 25)] == [2, 2, 1]
    verifies = plan_attention(LLAMA_8B, (5,) * 20, (4000,) * 20, 100)
    assert verifies[0].num_splits == 2


def test_verifies_have_room_for_the_longest() -> None:
    for longest in range(2, MAX_QUERIES + 1):
        plan = plan_decode(LLAMA_8B, (1,) * 15 + (longest,), (500,) * 16)
        assert plan is not None
        assert longest <= plan.queries <= plan.tile.block_m // LLAMA_8B.group


def test_the_histories_of_few_verifies_are_split() -> None:
    def splits(rows: int, context: int) -> int:
        plan = plan_decode(LLAMA_8B, (5,) * rows, (context,) * rows)
        assert plan is not None
        assert 5 <= plan.queries <= plan.tile.block_m // LLAMA_8B.group
        return plan.num_splits

    assert splits(1, 64) == 1
    assert splits(1, 4096) > splits(8, 4096) > splits(16, 4096) > 1


def test_tiles_over_fp8_keys_stay_off_the_warpgroup_units() -> None:
    shape = dataclasses.replace(LLAMA_8B, float8=True)
    for longest in range(1, SHORT_QUERY + 1):
        for rows in (1, 32):
            plan = plan_decode(shape, (longest,) * rows, (500,) * rows)
            assert plan is None or plan.tile.block_m <= 32
        for launch in plan_attention(shape, (longest, 300), (500, 500), longest + 300):
            assert launch.tile.block_m <= 32 or launch.reads_own


def test_other_batches_are_no_decodes() -> None:
    assert plan_decode(LLAMA_8B, (), ()) is None
    assert plan_decode(LLAMA_8B, (1,) * 3 + (MAX_QUERIES + 1,), (50,) * 4) is None
    assert plan_decode(dataclasses.replace(LLAMA_8B, group=16), (5,) * 4, (50,) * 4) is None, "too large a tile"
    assert plan_decode(LLAMA_8B, (0, 0), (5, 5)) is None
    assert plan_decode(LLAMA_8B, (1, 0), (5, 5)) is not None
