from __future__ import annotations

import pytest
import torch

from draftline.kernels.batch import DraftQuery
from draftline.kernels.ops import Ops
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.ops import TritonOps

BLOCK_SIZE = 4
LENGTHS = [30, 6, 7, 200, 8]


@pytest.fixture
def slots(device: torch.device, rng: torch.Generator) -> SlotTable:
    table = SlotTable.allocate(5, 600, 150, device)
    table.tokens.copy_(torch.randint(0, 1000, table.tokens.shape, generator=rng, device=device))
    table.block_tables.copy_(torch.randint(0, 999, table.block_tables.shape, generator=rng, device=device))
    table.lengths.copy_(torch.tensor(LENGTHS, dtype=torch.int32))
    return table


@pytest.fixture(params=["reference", "triton"])
def ops(request: pytest.FixtureRequest, device: torch.device) -> Ops:
    return ReferenceOps() if request.param == "reference" else TritonOps.sized(DeviceLimits.known(80, 8))


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("query", [1, 2, 5])
@pytest.mark.parametrize("step", [0, 1, 3])
def test_the_query_is_a_rows_newest_tokens(
    ops: Ops, slots: SlotTable, step: int, query: int, shift: int, device: torch.device
) -> None:
    chosen, drafts = [3, 0, 1, 4], [4, 1, 2, 0]
    passes = ops.gather_drafts(
        slots,
        torch.tensor(chosen, device=device),
        torch.tensor(drafts, dtype=torch.int32, device=device),
        DraftQuery(query, shift),
        4,
        BLOCK_SIZE,
    )
    assert len(passes) == 4
    inputs, query = passes[step], 1 if step else query
    batch = inputs.batch
    rows = {position: row for row, position in enumerate(inputs.positions.tolist()) if position >= 0}
    active = [slot for slot, wanted in zip(chosen, drafts, strict=True) if wanted > step]
    assert [inputs.slots[row].item() for row in rows.values()] == active
    for slot, (decides, row) in zip(active, rows.items(), strict=True):
        assert decides == LENGTHS[slot] + step
        begin, end = batch.query_starts[row : row + 2].tolist()
        assert end - begin == query == batch.query_lens_host[row]
        assert batch.logits_index[row] == end - 1
        assert batch.context_lens[row] == decides - shift <= batch.context_lens_host[row]
        newest = list(range(decides - query, decides))
        if not step:  # later ones are not known yet
            assert batch.token_ids[begin:end].tolist() == slots.tokens[slot, newest].tolist()
        expected = [position - shift for position in newest]
        assert batch.positions[begin:end].tolist() == expected
        entries = [int(slots.block_tables[slot, p // BLOCK_SIZE]) * BLOCK_SIZE + p % BLOCK_SIZE for p in expected]
        assert batch.cache_index[begin:end].tolist() == entries
        used = -(-(decides - shift) // BLOCK_SIZE)
        assert batch.block_tables[row, :used].tolist() == slots.block_tables[slot, :used].tolist()
    padding = set(range(len(inputs.positions))) - set(rows.values())
    for row in padding:
        begin, end = batch.query_starts[row : row + 2].tolist()
        assert batch.cache_index[begin:end].tolist() == [-1] * query
        assert batch.context_lens[row] == query


def test_later_passes_may_start_while_the_one_before_them_writes_the_cache(
    slots: SlotTable, device: torch.device
) -> None:
    ops, chosen = TritonOps.sized(DeviceLimits.known(80, 8)), torch.tensor([3], device=device)
    drafts = torch.tensor([3], dtype=torch.int32, device=device)
    passes = ops.gather_drafts(slots, chosen, drafts, DraftQuery(1, 0), 3, BLOCK_SIZE)
    assert [inputs.batch.settled for inputs in passes] == [True, False, False]


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_parallel_heads_query_goes_on_behind_the_tokens(
    ops: Ops, slots: SlotTable, ahead: int, device: torch.device
) -> None:
    chosen, drafts, query, first_id = [3, 0, 1, 4], [4, 1, 2, 0], 5, 5000
    (inputs,) = ops.gather_drafts(
        slots,
        torch.tensor(chosen, device=device),
        torch.tensor(drafts, dtype=torch.int32, device=device),
        DraftQuery(query, 1, ahead, first_id),
        1,
        BLOCK_SIZE,
    )
    batch, entries = inputs.batch, query + ahead
    found = [row for row, position in enumerate(inputs.positions[:: ahead + 1].tolist()) if position >= 0]
    for slot, own, row in zip(chosen, drafts, found, strict=False):
        length = LENGTHS[slot]
        every = slice(row * entries, (row + 1) * entries)
        decided = slice(row * (ahead + 1), (row + 1) * (ahead + 1))
        assert batch.query_starts[row : row + 2].tolist() == [every.start, every.stop]
        assert batch.query_lens_host[row] == entries
        assert batch.context_lens[row] == length - 1 + ahead <= batch.context_lens_host[row]
        tokens = slots.tokens[slot, length - query : length].tolist()
        assert batch.token_ids[every].tolist() == [*tokens, *range(first_id, first_id + ahead)]
        positions = list(range(length - 1 - query, length - 1 + ahead))
        assert batch.positions[every].tolist() == positions
        # The blocks end behind the row's own drafts.
        held = [min(position, length - 1 + own) for position in positions]
        blocks = [int(slots.block_tables[slot, position // BLOCK_SIZE]) for position in held]
        targets = [block * BLOCK_SIZE + position % BLOCK_SIZE for block, position in zip(blocks, held, strict=True)]
        assert batch.cache_index[every].tolist() == targets
        assert batch.logits_index[decided].tolist() == list(range(every.stop - ahead - 1, every.stop))
        assert inputs.slots[decided].tolist() == [slot] * (ahead + 1)
        assert inputs.positions[decided].tolist() == list(range(length, length + ahead + 1))
    assert len(found) == sum(own > 0 for own in drafts)
    for row in set(range(len(batch.context_lens))) - set(found):
        assert batch.cache_index[row * entries : (row + 1) * entries].tolist() == [-1] * entries
        assert batch.context_lens[row] == entries
        assert inputs.positions[row * (ahead + 1) : (row + 1) * (ahead + 1)].tolist() == [-1] * (ahead + 1)
