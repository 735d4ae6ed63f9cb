from __future__ import annotations

import torch

from draftline.kernels.reference import ReferenceOps
from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton.commit import commit


def test_tokens_go_to_their_positions_and_padding_nowhere(device: torch.device) -> None:
    tables = [SlotTable.allocate(300, 7, 1, device) for _ in range(2)]
    slots = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:200].to(device)
    positions = torch.randint(-1, 7, (200,), generator=torch.Generator().manual_seed(1)).to(device)
    tokens = torch.arange(1000, 1200, device=device)
    rows = SampleRows(slots, positions, SamplingFeatures.NONE, None)
    commit(tokens, rows, tables[0])
    ReferenceOps().commit(tokens, rows, tables[1])
    assert torch.equal(tables[0].tokens, tables[1].tokens)
    assert int((tables[0].tokens > 0).sum()) == int((positions >= 0).sum())


def test_nothing_to_commit(device: torch.device) -> None:
    table = SlotTable.allocate(1, 4, 1, device)
    none = torch.empty(0, dtype=torch.int64, device=device)
    commit(none, SampleRows(none, none, SamplingFeatures.NONE, None), table)
    assert not table.tokens.any()
