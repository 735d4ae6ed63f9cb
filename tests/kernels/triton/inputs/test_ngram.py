from __future__ import annotations

import random

import pytest
import torch

from draftline.kernels.reference.ngram import continuation
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.inputs.ngram import draft_ngram
from draftline.kernels.triton.inputs.ngram_table import draft_ngram_table, learn_ngrams


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
@pytest.mark.parametrize(("longest", "least"), [(1, 0), (3, 2), (8, 0), (8, 5)])
def test_the_kernel_drafts_the_same(count: int, longest: int, least: int, device: torch.device) -> None:
    rng = random.Random(count + longest)
    sequences = [[rng.randrange(4) for _ in range(length)] for length in (1, 2, 3, 17, 400, 1500)]
    table = SlotTable.allocate(8, 2000, 1, device)
    slots = rng.sample(range(8), len(sequences))
    for slot, tokens in zip(slots, sequences, strict=True):
        table.tokens[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        table.lengths[slot] = len(tokens)
    table.tokens[:, -10:] = 77
    before = table.tokens.clone()
    draft_ngram(torch.tensor(slots, device=device), count, longest, table, least)
    for slot, tokens in zip(slots, sequences, strict=True):
        end = len(tokens)
        assert table.tokens[slot, :end].tolist() == tokens
        drafts = continuation(tokens, count, longest, least)
        assert table.tokens[slot, end : end + len(drafts)].tolist() == drafts
        assert torch.equal(table.tokens[slot, end + len(drafts) :], before[slot, end + len(drafts) :])


ENTRIES = 1 << 12


def test_a_table_knows_what_others_said(device: torch.device) -> None:
    """The second sequence goes on as the first did, which it has not seen itself."""
    ops = ReferenceOps()
    table = SlotTable.allocate(2, 64, 1, device)
    ngrams = torch.zeros((ENTRIES, 2), dtype=torch.int32, device=device)
    for slot, tokens in enumerate(([11, 12, 13, 14, 15, 16, 17], [91, 11, 12, 13])):
        table.tokens[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        table.lengths[slot] = len(tokens)
    ops.learn_ngrams(torch.tensor([0], device=device), 5, ngrams, table)
    ops.draft_ngram_table(torch.tensor([1], device=device), 4, 4, ngrams, table)
    assert table.tokens[1, 4:8].tolist() == [14, 15, 16, 17]


def test_what_a_sequence_has_seen_in_full_comes_first(device: torch.device) -> None:
    ops = ReferenceOps()
    table = SlotTable.allocate(1, 64, 1, device)
    ngrams = torch.zeros((ENTRIES, 2), dtype=torch.int32, device=device)
    tokens = [1, 2, 3, 4, 5, 6, 9, 2, 3, 4, 7, 1, 2, 3, 4]
    table.tokens[0, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    table.lengths[0] = len(tokens)
    ops.learn_ngrams(torch.tensor([0], device=device), 20, ngrams, table)
    ops.draft_ngram_table(torch.tensor([0], device=device), 2, 4, ngrams, table)
    assert table.tokens[0, 15:17].tolist() == [5, 6], "four tokens of the end, not the latest three"


@pytest.mark.parametrize("count", [1, 4, 7])
@pytest.mark.parametrize("longest", [1, 3, 8])
def test_the_kernels_learn_and_draft_the_same(count: int, longest: int, device: torch.device) -> None:
    rng = random.Random(count + longest)
    sequences = [[rng.randrange(3) for _ in range(length)] for length in (1, 2, 3, 5, 17, 400)]
    slots = torch.tensor(rng.sample(range(8), len(sequences)), device=device)
    tables = [SlotTable.allocate(8, 600, 1, device) for _ in range(2)]
    ngrams = [torch.zeros((ENTRIES, 2), dtype=torch.int32, device=device) for _ in range(2)]
    for table in tables:
        for slot, tokens in zip(slots.tolist(), sequences, strict=True):
            table.tokens[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
            table.lengths[slot] = len(tokens)
    for row in slots.split(1):  # one at a time: of rows that write the same entry, any may come last
        ReferenceOps().learn_ngrams(row, 1, ngrams[0], tables[0])
        learn_ngrams(row, 1, ngrams[1], tables[1])
    ReferenceOps().learn_ngrams(slots[4:5], 9, ngrams[0], tables[0])
    learn_ngrams(slots[4:5], 9, ngrams[1], tables[1])
    ReferenceOps().draft_ngram_table(slots, count, longest, ngrams[0], tables[0])
    draft_ngram_table(slots, count, longest, ngrams[1], tables[1])
    assert torch.equal(tables[0].tokens, tables[1].tokens)
    assert bool((ngrams[1][:, 0] != 0).any())
