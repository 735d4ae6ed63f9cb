"""The head's rounds by the Triton operations, against the reference operations. On a CPU the kernels are interpreted."""

from __future__ import annotations

import pytest
import torch
from drafters import gatherer
from random_checkpoint import llama
from tiny import free_constraints
from tiny_head import Fields, InMemory, head_fields, random_weights
from torch import Tensor

from draftline.kernels.batch import Batch, KVCache, LayerCache
from draftline.kernels.ops import Ops
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.attention.parts_plan import Division
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.inputs import history_parts
from draftline.kernels.triton.ops import TritonOps
from draftline.models.heads.checkpoint import HeadCheckpoint
from draftline.models.heads.config import head_config
from draftline.models.heads.eagle3 import Eagle3Head
from draftline.spec.drafter import DraftChunk, DraftRows
from draftline.spec.eagle3 import Eagle3
from draftline.spec.parallel_head import ParallelHead

BLOCK, BLOCKS, DRAFTS = 8, 24, 3
TARGET = llama(vocab_size=61, hidden_size=24, num_layers=4)
LENGTHS = [20, 9, 5, 12]
DEVICE = torch.device("cpu")


def drafted(ops: Ops, drafts: list[int], fields: Fields, *, uneven: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The slots' tokens after a round of some rows, and the head's keys and values."""
    config = head_config(head_fields(TARGET, draft_vocab_size=37, head_dim=16, **fields), "head", TARGET)
    weights = random_weights(config)
    ids = torch.arange(37) + weights["d2t"]
    head = Eagle3Head(HeadCheckpoint(config, InMemory(config.layer, weights), ids), ops, torch.float32, DEVICE)
    layers = config.layer.num_layers
    cache = KVCache.allocate(layers, BLOCKS, BLOCK, 2, 16, dtype=torch.float32, device=DEVICE)
    constraints = free_constraints(4, DRAFTS, vocab=61)
    kind = ParallelHead if config.parallel_drafts > 1 else Eagle3
    drafter = kind(head, cache, ops, DRAFTS, constraints)
    draw = torch.Generator().manual_seed(2)
    table = SlotTable.allocate(4, 48, 6, DEVICE)
    table.tokens.copy_(torch.randint(0, 61, table.tokens.shape, generator=draw))
    table.block_tables.copy_(torch.randperm(BLOCKS, generator=draw).view(4, 6))
    table.lengths.copy_(torch.tensor(LENGTHS))
    table.temperature.copy_(torch.tensor([0.0, 0.8, 0.0, 1.1]))
    table.seed.copy_(torch.arange(4))
    drafter._store._states[:-1] = torch.randn((BLOCK * BLOCKS, 32), generator=draw)
    # The first pass of a round reads the newest DRAFTS + 1 entries itself.
    chunks = [DraftChunk(slot, 0, length - DRAFTS - 2) for slot, length in enumerate(LENGTHS)]
    drafter.catch_up(gatherer([chunk for chunk in chunks if chunk.count], table, ops, BLOCK))
    rows = DraftRows(torch.tensor([3, 0, 2, 1]), torch.tensor(drafts, dtype=torch.int32), max(drafts), uneven)
    drafter.propose(rows, table)
    # Beyond a row's drafts, the kernels may write or not.
    for slot, count in zip([3, 0, 2, 1], drafts, strict=True):
        table.tokens[slot, LENGTHS[slot] + count :] = 0
    entries = [
        int(table.block_tables[slot, position // BLOCK]) * BLOCK + position % BLOCK
        for slot, count in zip([3, 0, 2, 1], drafts, strict=True)
        for position in range(LENGTHS[slot] - 1 + max(0, count - 1) if count else LENGTHS[slot] - DRAFTS - 2)
    ]
    last = cache.layers[-1]
    keys, values = (kept.flatten(0, 1)[entries] for kept in (last.keys, last.values))
    return table.tokens, keys, values


PARALLEL: Fields = {"parallel_drafts": 3, "num_hidden_layers": 2}


@pytest.mark.parametrize("fields", [{}, PARALLEL], ids=["one after the other", "parallel"])
@pytest.mark.parametrize(
    "drafts",
    [[1, 3, 2, 0], pytest.param([3, 3, 3, 3], marks=pytest.mark.slow)],
    ids=["different", "alike"],
)
@torch.inference_mode()
def test_the_kernels_draft_as_the_reference_does(drafts: list[int], fields: Fields) -> None:
    expected = drafted(ReferenceOps(), drafts, fields)
    triton = TritonOps.sized(DeviceLimits.known(80, 8))
    tokens, keys, values = drafted(triton, drafts, fields)
    assert torch.equal(tokens, expected[0])
    torch.testing.assert_close(keys, expected[1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(values, expected[2], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "fields", [{}, pytest.param(PARALLEL, marks=pytest.mark.slow)], ids=["one after the other", "parallel"]
)
@torch.inference_mode()
def test_divided_histories_draft_the_same(fields: Fields, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = list[int]()

    def noted(ops: TritonOps, batch: Batch, cache: LayerCache, ahead: int) -> Batch:
        shared = share(ops, batch, cache, ahead)
        assert shared.parts is not None
        parts.append(int(shared.parts.starts[-1]))
        return shared

    share = TritonOps.divide_histories
    monkeypatch.setattr(TritonOps, "divide_histories", noted)
    # Of one tile each. The longest history has two or more, but no draft in the later passes.
    monkeypatch.setattr(history_parts, "LEAST_PART", 16)
    monkeypatch.setattr(history_parts, "division", lambda *_: Division(every=True, max_parts=64, least_part=16))
    triton = TritonOps.sized(DeviceLimits.known(80, 8))
    drafts = [2, 1, 3, 3]
    expected = drafted(triton, drafts, fields)
    assert not parts
    got = drafted(triton, drafts, fields, uneven=True)
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
    (count,) = parts  # all passes of a round have those of its first one
    assert count > len(drafts)
