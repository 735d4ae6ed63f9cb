from __future__ import annotations

import dataclasses

from draftline.kernels.triton.attention.plan import (
    MAX_QUERIES,
    MAX_SPLITS,
    SHORT_QUERY,
    AttentionShape,
    max_split_programs,
    num_splits,
    plan_attention,
    plan_decode,
)

LLAMA_8B = AttentionShape(group=4, num_kv_heads=8, head_dim=128, element_size=2, num_sms=132)


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
    assert num_splits(LLAMA_8B, 1, 100_000, 64) == MAX_SPLITS
    assert num_splits(LLAMA_8B, 256, 100_000, 64) == 1


def test_no_more_splits_than_key_tiles() -> None:
    assert num_splits(LLAMA_8B, 1, 64, 64) == 1
    assert num_splits(LLAMA_8B, 1, 200, 64) == 4


def test_beside_prompts_verifies_of_all_lengths_have_one_tile() -> None:
    tiles = [plan_attention(LLAMA_8B, (1, length, 512), (900,) * 3, 513 + length)[0].tile for length in (1, 2, 5, 17)]
    assert tiles[0] != tiles[1] == tiles[2] == tiles[3]


def test_beside_prompts_histories_are_split_into_few_different_numbers_of_parts() -> None:
    def splits(decodes: int, context: int) -> int:
        lengths = (1,) * decodes + (512,)
        return plan_attention(LLAMA_8B, lengths, (context,) * decodes + (512,), sum(lengths))[0].num_splits

    for size, parts in ((8, 8), (32, 2), (128, 1)):
        assert {splits(decodes, context) for decodes in (size // 4, size - 1) for context in (1, 100_000)} == {parts}


def test_a_decode_s_history_is_split_while_the_device_has_room() -> None:
    def splits(rows: int, context: int) -> int:
        plan = plan_decode(LLAMA_8B, (1,) * rows, (context,) * rows)
        assert plan is not None
        assert plan.num_splits == 1 or rows * LLAMA_8B.num_kv_heads <= max_split_programs(LLAMA_8B.num_sms)
        return plan.num_splits

    assert [splits(1, context) for context in (1, 128, 129, 400)] == [1, 1, 2, 4]
    assert splits(1, 100_000) > splits(8, 100_000) > splits(16, 100_000) > 1
    assert splits(64, 100_000) == 1


def test_verifies_that_fill_the_device_are_one_launch() -> None:
    for longest in range(2, MAX_QUERIES + 1):
        plan = plan_decode(LLAMA_8B, (1,) * 31 + (longest,), (500,) * 32)
        assert plan is not None
        assert longest <= plan.queries <= plan.tile.block_m // LLAMA_8B.group
        assert plan.num_splits == 1
    assert plan_decode(LLAMA_8B, (5,) * 64, (500,) * 64) is None


def test_the_histories_of_few_verifies_are_split() -> None:
    def splits(rows: int, context: int) -> int:
        plan = plan_decode(LLAMA_8B, (5,) * rows, (context,) * rows)
        assert plan is not None
        assert 5 <= plan.queries <= plan.tile.block_m // LLAMA_8B.group
        return plan.num_splits

    assert splits(1, 64) == 1
    assert splits(1, 4096) > splits(8, 4096) > splits(16, 4096) > 1


def test_tiles_over_fp8_keys_stay_off_the_warpgroup_units() -> None:
    shape = dataclasses.replace(LLAMA_8B, element_size=1, float8=True)
    for longest in range(1, SHORT_QUERY + 1):
        for rows in (1, 32):
            plan = plan_decode(shape, (longest,) * rows, (500,) * rows)
            assert plan is None or plan.tile.block_m <= 32
        for launch in plan_attention(shape, (longest, 300), (500, 500), longest + 300):
            assert launch.tile.block_m <= 32 or launch.reads_own


def test_other_batches_are_no_decodes() -> None:
    assert plan_decode(LLAMA_8B, (), ()) is None
    assert plan_decode(LLAMA_8B, (1,) * 31 + (MAX_QUERIES + 1,), (50,) * 32) is None
    assert plan_decode(dataclasses.replace(LLAMA_8B, group=16), (5,) * 32, (50,) * 32) is None, "too large a tile"
    assert plan_decode(LLAMA_8B, (0, 0), (5, 5)) is None
    assert plan_decode(LLAMA_8B, (1, 0), (5, 5)) is not None
