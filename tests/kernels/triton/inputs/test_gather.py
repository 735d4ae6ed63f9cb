from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from draftline.kernels.batch import Inputs
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.attention.plan import SHORT_QUERY
from draftline.kernels.triton.inputs.gather import GatherBounds, gather, gather_planned, plan_on_host
from draftline.kernels.triton.linear.vendor import compared_rows

BLOCK_SIZE = 4
MAX_LEN = 600


@pytest.fixture
def slots(device: torch.device, rng: torch.Generator) -> SlotTable:
    table = SlotTable.allocate(5, MAX_LEN, MAX_LEN // BLOCK_SIZE, device)
    table.tokens.copy_(torch.randint(0, 1000, table.tokens.shape, generator=rng, device=device))
    table.block_tables.copy_(torch.randint(0, 999, table.block_tables.shape, generator=rng, device=device))
    return table


@pytest.mark.parametrize(
    ("query_lens", "starts", "logits_counts"),
    [
        ((1, 1, 1), (0, 7, 31), (1, 1, 1)),
        ((3, 1, 300), (9, 0, 200), (3, 0, 1)),
        ((0, 2, 0, 5), (4, 3, 2, 16), (0, 2, 0, 5)),
        ((513,), (0,), (0,)),
    ],
    ids=["decode", "mixed", "empty-rows", "chunk-without-logits"],
)
def test_gather(
    query_lens: tuple[int, ...],
    starts: tuple[int, ...],
    logits_counts: tuple[int, ...],
    slots: SlotTable,
    device: torch.device,
) -> None:
    chosen = [4, 0, 3, 1][: len(query_lens)]
    inputs = gather(slots, torch.tensor(chosen, device=device), query_lens, starts, logits_counts, BLOCK_SIZE)
    batch = inputs.batch

    tokens, positions, index, begins, logits = [], [], [], [0], []
    for slot, length, start, count in zip(chosen, query_lens, starts, logits_counts, strict=True):
        for position in range(start, start + length):
            tokens.append(slots.tokens[slot, position].item())
            positions.append(position)
            block = int(slots.block_tables[slot, position // BLOCK_SIZE].item())
            index.append(block * BLOCK_SIZE + position % BLOCK_SIZE)
        begins.append(begins[-1] + length)
        logits.extend(range(begins[-1] - count, begins[-1]))
    padding = compared_rows(len(tokens)) - len(tokens)
    assert batch.token_ids.tolist() == tokens + [0] * padding
    assert batch.positions.tolist() == positions + [0] * padding
    assert batch.cache_index.tolist() == index + [-1] * padding
    assert batch.query_starts.tolist() == begins
    assert batch.logits_index.tolist() == logits
    contexts = [start + length for start, length in zip(starts, query_lens, strict=True)]
    assert batch.context_lens.tolist() == contexts
    assert batch.query_lens_host == query_lens
    assert batch.context_lens_host == tuple(contexts)
    for row, (slot, context) in enumerate(zip(chosen, contexts, strict=True)):
        used = -(-context // BLOCK_SIZE)
        assert batch.block_tables[row, :used].tolist() == slots.block_tables[slot, :used].tolist()


def test_attention_is_planned_with_short_pieces_of_prompts_as_long_ones(slots: SlotTable, device: torch.device) -> None:
    """A decode, a verify, the end of a prompt, a piece that decides nothing, and a long one."""
    rows = torch.tensor([4, 0, 3, 1, 2], device=device)
    batch = gather(slots, rows, (1, 5, 9, 2, 300), (7, 0, 31, 5, 0), (1, 5, 1, 0, 1), BLOCK_SIZE).batch
    assert batch.query_lens_host == (1, 5, SHORT_QUERY + 1, SHORT_QUERY + 1, 300)
    assert batch.query_starts.tolist() == [0, 1, 6, 15, 17, 317]
    assert batch.context_lens_host == (8, 5, 40, 7, 300)


def test_rows_by_context_length(slots: SlotTable, device: torch.device) -> None:
    """Longest first, equal ones in the rows' order, those without a query last."""
    starts = [(37 * row) % 90 for row in range(150)]
    query_lens = [row % 3 for row in range(150)]
    slots.lengths[3] = 400
    starts[7], query_lens[7] = 450, 1
    from_newest = tuple(row == 7 for row in range(150))
    chosen = torch.full((150,), 3, device=device)
    batch = gather(slots, chosen, tuple(query_lens), tuple(starts), (0,) * 150, BLOCK_SIZE, from_newest).batch
    contexts = [(start + length) if length else 0 for start, length in zip(starts, query_lens, strict=True)]
    contexts[7] = 400
    assert batch.longest_first is not None
    assert batch.longest_first.tolist() == sorted(range(150), key=lambda row: -contexts[row])


@pytest.mark.parametrize("function", [ReferenceOps().gather, gather], ids=["reference", "triton"])
def test_a_start_may_be_known_to_the_device_alone(
    function: Callable[..., Inputs], slots: SlotTable, device: torch.device
) -> None:
    """Decodes and verifies start with their last known token; prompt chunks where the host says."""
    chosen, query_lens, counts = torch.tensor([2, 4, 1], device=device), (1, 7, 5), (1, 1, 5)
    slots.lengths.copy_(torch.tensor([0, 30, 12, 0, 90], dtype=torch.int32))
    told = function(slots, chosen, query_lens, (11, 83, 29), counts, BLOCK_SIZE)
    found = function(slots, chosen, query_lens, (15, 83, 31), counts, BLOCK_SIZE, (True, False, True))
    for inputs in (told, found):
        assert inputs.slots.tolist() == [2, 4, 1, 1, 1, 1, 1]
        assert inputs.positions.tolist() == [12, 90, 30, 31, 32, 33, 34]
    for name in ("token_ids", "positions", "cache_index", "query_starts", "context_lens", "logits_index"):
        assert torch.equal(getattr(told.batch, name), getattr(found.batch, name))
    assert all(a >= b for a, b in zip(found.batch.context_lens_host, told.batch.context_lens_host, strict=True))
    assert max(found.batch.context_lens_host) == 90


def test_a_bucket_larger_than_the_plan_is_padded(slots: SlotTable, device: torch.device) -> None:
    plan = torch.tensor(plan_on_host((2, 0, 0), (5, 0, 0), (2, 0, 0)), dtype=torch.int32, device=device)
    bounds = GatherBounds(
        num_tokens=9, num_logits=6, query_lens=(3, 3, 3), context_lens=(100, 100, 100), logits_lens=(2, 2, 2)
    )
    inputs = gather_planned(slots, torch.tensor([2, 0, 0], device=device), plan, bounds, BLOCK_SIZE)
    batch = inputs.batch
    assert inputs.slots.tolist() == [2, 2, 0, 0, 0, 0]
    assert inputs.positions.tolist() == [6, 7, -1, -1, -1, -1]
    assert batch.longest_first is not None
    assert batch.longest_first.tolist() == [0, 1, 2]
    assert batch.query_starts.tolist() == [0, 2, 2, 2]
    assert batch.token_ids.tolist() == [*slots.tokens[2, 5:7].tolist(), *[0] * 7]
    assert batch.positions.tolist() == [5, 6, *[0] * 7]
    assert batch.cache_index[2:].tolist() == [-1] * 7
    assert batch.logits_index.tolist() == [0, 1, 0, 0, 0, 0]
    assert batch.query_lens_host == (3, 3, 3)
    assert batch.logits_starts is not None
    assert batch.logits_starts.tolist() == [0, 2, 2, 2]
    assert batch.logits_lens_host == (2, 2, 2)


def test_the_tokens_that_decide_are_a_batch_of_their_own(slots: SlotTable, device: torch.device) -> None:
    chosen, query_lens, counts = torch.tensor([2, 4, 1], device=device), (6, 7, 1), (1, 0, 1)
    batch = gather(slots, chosen, query_lens, (12, 80, 32), counts, BLOCK_SIZE).batch
    wanted = batch.logits_only()
    assert wanted is not None
    assert wanted.positions.tolist() == [17, 32]
    assert torch.equal(wanted.token_ids, batch.token_ids[batch.logits_index])
    assert torch.equal(wanted.cache_index, batch.cache_index[batch.logits_index])
    assert wanted.query_starts.tolist() == [0, 1, 1, 2]
    assert wanted.context_lens.tolist() == [18, 87, 33]
    assert wanted.query_lens_host == counts
    assert wanted.logits_index.tolist() == [0, 1]
    assert wanted.logits_only() is None
    # None is wanted; several of one row; all.
    for counts in ((0, 0, 0), (2, 0, 1), query_lens):
        assert gather(slots, chosen, query_lens, (12, 80, 32), counts, BLOCK_SIZE).batch.logits_only() is None
