from __future__ import annotations

import pytest
import torch

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
    return ReferenceOps() if request.param == "reference" else TritonOps.sized(DeviceLimits.known(80, 8), device=device)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("query", [1, 2, 5])
@pytest.mark.parametrize("step", [0, 1, 3])
def test_the_query_is_a_rows_newest_tokens(
    ops: Ops, slots: SlotTable, step: int, query: int, shift: int, device: torch.device
) -> None:
    chosen, drafts = [3, 0, 1, 4], [4, 1, 2, 0]
    inputs = ops.gather_drafts(
        slots,
        torch.tensor(chosen, device=device),
        torch.tensor(drafts, dtype=torch.int32, device=device),
        step,
        BLOCK_SIZE,
        query,
        shift,
    )
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
