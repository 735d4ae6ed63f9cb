from __future__ import annotations

import random

import pytest
import torch

from draftline.kernels.reference_ngram import continuation
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.ngram import draft_ngram


@pytest.mark.parametrize(
    ("tokens", "count", "expected"),
    [
        ([5, 6, 7, 8, 9, 5, 6], 3, [7, 8, 9]),
        ([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 2, [9, 2]),
        ([4, 1, 4, 2, 4], 2, [2, 4]),
        ([7, 7, 7], 4, [7, 7, 7, 7]),
        ([1, 2, 1, 2], 5, [1, 2, 1, 2, 1]),
        ([1, 2, 3], 2, [3, 3]),
        ([9], 2, [9, 9]),
    ],
    ids=["once", "longest-end", "latest", "one-token", "period", "never", "alone"],
)
def test_the_continuation(tokens: list[int], count: int, expected: list[int]) -> None:
    assert continuation(tokens, count, 3) == expected


@pytest.mark.parametrize("count", [1, 4, 7])
@pytest.mark.parametrize("longest", [1, 3, 8])
def test_the_kernel_drafts_the_same(count: int, longest: int, device: torch.device) -> None:
    rng = random.Random(count + longest)
    sequences = [[rng.randrange(4) for _ in range(length)] for length in (1, 2, 3, 17, 400, 1500)]
    table = SlotTable.allocate(8, 2000, 1, device)
    slots = rng.sample(range(8), len(sequences))
    for slot, tokens in zip(slots, sequences, strict=True):
        table.tokens[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        table.lengths[slot] = len(tokens)
    draft_ngram(torch.tensor(slots, device=device), count, longest, table)
    for slot, tokens in zip(slots, sequences, strict=True):
        end = len(tokens)
        assert table.tokens[slot, :end].tolist() == tokens
        assert table.tokens[slot, end : end + count].tolist() == continuation(tokens, count, longest)
        assert not table.tokens[slot, end + count :].any()
