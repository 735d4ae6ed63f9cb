from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton.sampling.accept import accept

Accept = Callable[[Tensor, SampleRows, Tensor, int, SlotTable], Tensor]


@pytest.mark.parametrize("function", [accept, ReferenceOps().accept], ids=["triton", "reference"])
def test_drafts_are_accepted_while_they_are_what_was_sampled(function: Accept, device: torch.device) -> None:
    rng = random.Random(0)
    table = SlotTable.allocate(40, 30, 1, device)
    expected_tokens = table.tokens.clone()
    starts, slots, positions, tokens, expected = [0], [], [], [], []
    for slot in rng.sample(range(40), 30):
        count, position = rng.randrange(6), rng.randrange(1, 24)
        drafts = [rng.randrange(1, 3) for _ in range(count)]
        sampled = [rng.randrange(1, 3) for _ in range(count)]
        for index, draft in enumerate(drafts[:-1]):
            table.tokens[slot, position + index] = expected_tokens[slot, position + index] = draft
        length = 0
        for index, token in enumerate(sampled):
            length += 1
            expected_tokens[slot, position + index] = token
            if index == count - 1 or token != drafts[index]:
                break
        starts.append(starts[-1] + count)
        slots += [slot] * count
        positions += range(position, position + count)
        tokens += sampled
        expected.append((slot, position, length))
    rows = SampleRows(
        torch.tensor(slots, device=device), torch.tensor(positions, device=device), SamplingFeatures.NONE, None
    )
    offsets = torch.tensor(starts, dtype=torch.int32, device=device)
    accepted = function(torch.tensor(tokens, device=device), rows, offsets, 6, table)
    assert accepted.tolist() == [length for _, _, length in expected]
    assert torch.equal(table.tokens, expected_tokens)
    for slot, position, length in expected:
        assert int(table.lengths[slot]) == (position + length if length else 0)
