from __future__ import annotations

import dataclasses

from draftline.kernels.triton.attention.decode_plan import plan_decode
from draftline.kernels.triton.attention.plan import (
    MAX_SPLITS,
    NO_LONG_QUERIES,
    NO_SHORT_QUERIES,
    SHORT_QUERY,
    AttentionLaunch,
    AttentionShape,
    num_splits,
    plan_attention,
)
from draftline.kernels.triton.device import DeviceLimits

H200 = DeviceLimits.known(90, 132)
LLAMA_8B = AttentionShape(group=4, num_kv_heads=8, head_dim=128, limits=H200)


def only_launch(shape: AttentionShape, lengths: tuple[int, ...], context: int) -> AttentionLaunch:
    """Of rows that all have ``context``."""
    (launch,) = plan_attention(shape, lengths, (context,) * len(lengths), sum(lengths))
    return launch


def test_decodes_are_one_launch_of_one_tile_a_row() -> None:
    plan = only_launch(LLAMA_8B, (1,) * 64, 1000)
    assert (plan.short.num_tiles, plan.short.tiles_per_row, plan.short.max_query) == (64, 1, 1)
    assert plan.long is NO_LONG_QUERIES


def test_a_decode_beside_a_prompt_chunk_has_a_smaller_tile() -> None:
    plan = only_launch(LLAMA_8B, (1, 512, 1), 900)
    assert plan.short.max_query == 1
    assert plan.short.tile.block_m < plan.long.tile.block_m
    assert plan.tile == plan.long.tile


def test_a_chunk_alone_has_no_short_queries() -> None:
    assert only_launch(LLAMA_8B, (512, 0), 900).short is NO_SHORT_QUERIES


def test_no_rows_and_empty_rows_need_no_launch() -> None:
    assert plan_attention(LLAMA_8B, (), (), 0) == ()
    assert plan_attention(LLAMA_8B, (0, 0), (5, 9), 0) == ()


def test_search_tiles_cover_every_division_of_tokens_into_rows() -> None:
    for lengths in [(33, 33, 33), (1000,), (40, 1, 1, 64, 65)]:
        launch = only_launch(LLAMA_8B, lengths, 2000).long
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
            parts = [plan, *(part for launch in launches for part in (launch.short, launch.long))]
            tiles = {part.tile.block_n for part in parts if part and part.tile.block_n}
            assert tiles == {64}
    for head_dim, wide, tile in ((64, False, 64), (80, False, 64), (256, False, 32), (512, False, 16), (128, True, 16)):
        assert dataclasses.replace(LLAMA_8B, head_dim=head_dim, wide=wide).key_tile == tile


def test_there_is_room_for_every_tile_of_a_shared_history() -> None:
    for lengths in ((1,), (5, 3), (17,) * 3, (40, 1, 5)):
        contexts = tuple(1000 + 77 * row for row in range(len(lengths)))
        plan = plan_decode(LLAMA_8B, lengths, contexts)
        assert plan is None or plan.max_tiles * LLAMA_8B.key_tile >= max(contexts)
        (ragged,) = plan_attention(LLAMA_8B, lengths, contexts, sum(lengths))
        short = [c for q, c in zip(lengths, contexts, strict=True) if q <= ragged.short.max_query]
        assert ragged.short.num_splits == 1 or ragged.short.max_tiles * LLAMA_8B.key_tile >= max(short)


def test_a_short_piece_of_a_prompt_shares_out_its_history_like_a_verify() -> None:
    """Its bound is that of a long one, so that its history, too, must have room beside those of verifies."""
    (launch,) = plan_attention(LLAMA_8B, (SHORT_QUERY + 1, 4), (3000, 200), 6)
    assert launch.short.num_splits > 1
    assert launch.max_short == 4
    assert launch.short.max_tiles * LLAMA_8B.key_tile >= 3000


def test_no_more_splits_than_key_tiles() -> None:
    assert num_splits(LLAMA_8B, 1, 64, 64) == 1
    assert num_splits(LLAMA_8B, 1, 200, 64) == 4


def test_beside_prompts_the_rows_decide_whether_histories_are_shared_out_whose_states_fit() -> None:
    """Else a step by operation might need a kernel that no graph has."""
    for decodes, shared in ((1, True), (7, True), (30, True), (40, False), (200, False)):
        for context in (1, 64, 600, 4000):
            lengths = (1,) * decodes + (512,)
            first, *_ = plan_attention(LLAMA_8B, lengths, (context,) * len(lengths), sum(lengths))
            assert (first.short.num_splits > 1) == shared


def test_states_beside_prompts_take_little_memory() -> None:
    """Activations take theirs at the same time, and a graph of so many rows was planned for the longest context."""
    for decodes in (1, 7, 30):
        for context in (4096, 32_768, 131_072):
            lengths = (1,) * decodes + (512,)
            first, *others = plan_attention(LLAMA_8B, lengths, (context,) * len(lengths), sum(lengths))
            stored = len(lengths) * LLAMA_8B.state_bytes(context)
            assert (first.short.num_splits > 1) == (stored <= 64 << 20) == (not others)


def test_beside_prompts_many_decodes_have_a_launch_of_their_own() -> None:
    """In one with prompts, few of their programs would fit a multiprocessor. It is the second: chunks take longest."""
    long, short = plan_attention(LLAMA_8B, (1,) * 40 + (512,), (600,) * 41, 552)
    assert (short.max_short, short.short.num_tiles, short.long) == (1, 41, NO_LONG_QUERIES)
    assert (long.max_short, long.short) == (1, NO_SHORT_QUERIES)
    together = only_launch(LLAMA_8B, (1, 5) * 10 + (512,), 600)
    assert (together.max_short, together.short.max_query, together.long.min_query) == (5, 5, 6)


def test_chunks_before_decodes_all_start_at_once_if_they_are_few() -> None:
    """Only then do decodes start. Of many chunks, the device starts the next one where it has room."""
    for chunk, at_once in ((512, 264), (900, 264), (4000, None)):
        long, _ = plan_attention(LLAMA_8B, (1,) * 40 + (chunk,), (4096,) * 41, 40 + chunk)
        assert long.long.at_once == at_once
    assert only_launch(LLAMA_8B, (512,), 600).long.at_once is None
    assert only_launch(LLAMA_8B, (1, 512), 600).long.at_once is None


def test_beside_prompts_verifies_have_one_of_two_tiles() -> None:
    """Decodes have the smaller one. Else a step by operation might need a kernel that no graph has."""
    tiles = {length: only_launch(LLAMA_8B, (length, 512), 600).short.tile.block_m for length in (1, 2, 4, 5, 9, 16, 30)}
    assert tiles == {1: 16, 2: 16, 4: 16, 5: 64, 9: 64, 16: 64, 30: 64}


def test_tiles_over_fp8_keys_stay_off_the_warpgroup_units() -> None:
    shape = dataclasses.replace(LLAMA_8B, float8=True)
    for longest in range(1, SHORT_QUERY + 1):
        for rows in (1, 32):
            plan = plan_decode(shape, (longest,) * rows, (500,) * rows)
            assert plan is None or plan.tile.block_m <= 32
        assert only_launch(shape, (longest, 300), 500).short.tile.block_m <= 32
