"""Which histories have parts, and how many."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
import torch

from draftline.kernels.batch import Batch, HistoryParts
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.inputs.history_parts import divide_histories


def batch_of(query_lens: list[int], context_lens: list[int], device: torch.device) -> Batch:
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    return Batch(
        token_ids=nothing,
        positions=nothing,
        cache_index=nothing,
        query_starts=torch.tensor([0, *accumulate(query_lens)], dtype=torch.int32, device=device),
        context_lens=torch.tensor(context_lens, dtype=torch.int32, device=device),
        block_tables=nothing,
        logits_index=nothing,
        query_lens_host=tuple(query_lens),
        context_lens_host=(1 << 17,) * len(query_lens),
    )


def divided(
    context_lens: list[int],
    device: torch.device,
    kv_heads: int = 8,
    sms: int = 132,
    query_lens: list[int] | None = None,
    head_dim: int = 128,
) -> HistoryParts:
    batch = batch_of(query_lens or [1] * len(context_lens), context_lens, device)
    found = divide_histories(batch, kv_heads, head_dim, DeviceLimits.known(80, sms)).parts
    assert found is not None
    assert not found.arrived.any()
    assert len(found.arrived) == kv_heads * len(found.rows)
    return found


def counts(parts: HistoryParts) -> dict[int, int]:
    """How many parts the rows have that have some."""
    starts = parts.starts.tolist()
    found = {row: starts[row + 1] - starts[row] for row in range(len(starts) - 1) if starts[row + 1] > starts[row]}
    assert parts.rows.tolist()[: starts[-1]] == [row for row, count in found.items() for _ in range(count)]
    return found


def test_a_row_much_longer_than_the_others_has_parts(device: torch.device) -> None:
    found = divided([300] * 40 + [4000] + [300] * 23, device)
    assert counts(found) == {40: 16}
    assert found.length.tolist() == [256]
    assert counts(divided([300] * 63 + [32_000], device)) == {63: 63}


def test_rows_of_similar_lengths_have_none(device: torch.device) -> None:
    for context_lens in ([3500] * 40, [400 + 5 * row for row in range(100)], [760] * 2):
        assert counts(divided(context_lens, device)) == {}


def test_a_row_without_a_query_has_none(device: torch.device) -> None:
    found = divided([300, 300, 9000, 9000], device, query_lens=[1, 1, 0, 5])
    assert list(counts(found)) == [3]


def test_prompt_chunks_have_none(device: torch.device) -> None:
    found = divided([300, 9000, 9000, 300, 9000], device, query_lens=[1, 1, 33, 700, 5])
    assert counts(found) == {1: 29, 4: 29}


def test_all_decodes_of_narrow_heads_have_parts(device: torch.device) -> None:
    found = divided([300, 4000, 7, 60, 9], device, kv_heads=3, query_lens=[1, 1, 5, 0, 0], head_dim=64)
    assert counts(found) == {0: 5, 1: 63, 2: 1}
    assert found.length.tolist() == [64]
    many = divided([4000] * 100, device, kv_heads=3, head_dim=64)
    assert many.length.tolist() == [960]
    assert set(counts(many).values()) == {5}
    assert sum(counts(many).values()) <= len(many.rows) == 528


def test_parts_hold_the_tokens_of_later_passes(device: torch.device) -> None:
    batch = batch_of([1, 2, 0], [62, 4000, 30], device)
    for ahead, expected in ((2, {0: 1, 1: 63}), (3, {0: 2, 1: 63}), (40, {0: 2, 1: 64})):
        found = divide_histories(batch, 3, 64, DeviceLimits.known(80, 132), ahead).parts
        assert found is not None
        assert counts(found) == expected


def test_all_decodes_of_narrow_heads_have_longer_parts_beside_prompts(device: torch.device) -> None:
    found = divided([300, 4000, 7, 60], device, kv_heads=3, query_lens=[1, 1, 1, 40], head_dim=64)
    assert counts(found) == {0: 3, 1: 32, 2: 1}
    assert found.length.tolist() == [128]


@pytest.mark.parametrize("seed", range(5))
def test_there_are_enough_programs_for_all_parts(seed: int, device: torch.device) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        kv_heads, sms = draw.choice([1, 3, 8, 32]), draw.choice([8, 66, 132])
        rows = draw.choice([2, 9, 40, 700])
        context_lens = [int(10 ** draw.uniform(1, 5)) for _ in range(rows)]
        found = divided(context_lens, device, kv_heads, sms)
        count, length = counts(found), int(found.length)
        assert length % 64 == 0
        assert length >= 256
        assert sum(count.values()) <= len(found.rows)
        least = max(sum(context_lens) * kv_heads // (2 * sms), 768)
        for row, context in enumerate(context_lens):
            assert count.get(row, 0) == (-(-context // length) if context > least else 0)
