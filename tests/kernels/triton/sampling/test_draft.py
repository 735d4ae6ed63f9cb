from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.testing import assert_close

from draftline.kernels.batch import Batch, Inputs
from draftline.kernels.constraints import DRAFTS, ConstraintTable
from draftline.kernels.ops import Ops
from draftline.kernels.philox import gumbel
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.ops import TritonOps
from draftline.kernels.triton.sampling.gumbel import noise_of_tokens

MAX_LEN = 40
VOCAB = 1100
ROWS = 6


@pytest.fixture
def triton_ops(device: torch.device) -> TritonOps:
    return TritonOps.sized(DeviceLimits.known(80, 8))


@pytest.fixture(params=["reference", "triton"])
def ops(request: pytest.FixtureRequest, triton_ops: TritonOps) -> Ops:
    return ReferenceOps() if request.param == "reference" else triton_ops


@pytest.fixture
def free(device: torch.device) -> ConstraintTable:
    """A constraint table in which nothing is constrained."""
    return ConstraintTable.allocate(8, VOCAB, words=64, masks=4, samples=2, device=device)


@triton.jit
def _noise_kernel(
    out: tl.tensor, tokens: tl.tensor, positions: tl.tensor, seeds: tl.tensor, BLOCK: tl.constexpr
) -> None:
    row, entry = tl.program_id(0), tl.arange(0, BLOCK)
    noise = noise_of_tokens(tl.load(tokens + entry), tl.load(positions + row), tl.load(seeds + row))
    tl.store(out + row * BLOCK + entry, noise)


def test_noise_of_tokens_is_the_whole_vocabulary_s(device: torch.device, rng: torch.Generator) -> None:
    seeds = torch.tensor([0, 1, -1, 2**62 + 12345, -(2**63)], device=device)
    positions = torch.tensor([0, 7, 2**31, 2**32 - 1, 100_000], device=device)
    tokens = torch.randperm(1024, generator=rng, device=device)[:256]
    out = torch.empty(5, 256, device=device)
    _noise_kernel[(5,)](out, tokens, positions, seeds, BLOCK=256)
    assert_close(out, gumbel(seeds, positions, 1024)[:, tokens], rtol=2e-6, atol=1e-6)


@pytest.fixture
def slots(device: torch.device, rng: torch.Generator) -> SlotTable:
    """Slots of several temperatures, the lowest of which count as none."""
    slots = SlotTable.allocate(8, MAX_LEN, 4, device)
    slots.tokens.copy_(torch.randint(0, VOCAB, slots.tokens.shape, generator=rng, device=device))
    slots.seed.copy_(torch.randint(-(2**62), 2**62, (8,), generator=rng, device=device))
    slots.temperature.copy_(torch.tensor([0, 0.5, 1, 1.5, 0.8, 3, 1, 1e-6], device=device))
    return slots


def rows_of(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.tensor([3, 1, 2, 0, 4, 7], device=device), torch.tensor([15, 30, -1, 39, 19, 7], device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("vocab", [VOCAB, 70, 1], ids=str)
@pytest.mark.parametrize("mapped", [False, True], ids=["whole", "mapped"])
def test_drafts_are_the_reference_s(
    mapped: bool,
    vocab: int,
    dtype: torch.dtype,
    triton_ops: TritonOps,
    slots: SlotTable,
    free: ConstraintTable,
    device: torch.device,
    rng: torch.Generator,
) -> None:
    wide = torch.randn(ROWS, vocab + 9, generator=rng, device=device).mul_(3).to(dtype)
    token_ids = torch.randperm(VOCAB, generator=rng, device=device)[:vocab].sort().values if mapped else None
    before, logits = wide.clone(), wide[:, :vocab]
    rows, positions = rows_of(device)
    tables = []
    for ops in (ReferenceOps(), triton_ops):
        table = replace(slots, tokens=slots.tokens.clone())
        ops.draft_sampled(logits, token_ids, rows, positions, table, free)
        tables.append(table.tokens)
    assert torch.equal(*tables)
    assert torch.equal(wide, before)


def test_drafts_of_a_head_s_vocabulary_are_those_of_the_whole(
    ops: Ops, slots: SlotTable, free: ConstraintTable, device: torch.device, rng: torch.Generator
) -> None:
    """Where no other token could win, the two draft the same: the noise is of the token, not of its place."""
    logits = torch.randn(ROWS, VOCAB, generator=rng, device=device)
    token_ids = torch.randperm(VOCAB, generator=rng, device=device)[:200].sort().values
    whole = torch.full_like(logits, float("-inf")).index_copy_(1, token_ids, logits[:, token_ids])
    rows, positions = rows_of(device)
    table = replace(slots, tokens=slots.tokens.clone())
    ops.draft_sampled(whole, None, rows, positions, table, free)
    ops.draft_sampled(logits[:, token_ids], token_ids, rows, positions, slots, free)
    assert torch.equal(slots.tokens, table.tokens)


def test_drafts_are_stored_where_they_belong(
    ops: Ops, slots: SlotTable, free: ConstraintTable, device: torch.device
) -> None:
    slots.temperature.zero_()
    expected = slots.tokens.clone()
    logits = torch.zeros(4, 20, device=device)
    for row, token in enumerate((11, 12, 13, 14)):
        logits[row, token] = 1
    rows, positions = torch.tensor([3, 0, 1, 4], device=device), torch.tensor([20, -1, 2, 39], device=device)
    ops.draft_sampled(logits, None, rows, positions, slots, free)
    expected[3, 20], expected[1, 2], expected[4, 39] = 11, 13, 14
    assert torch.equal(slots.tokens, expected)


def test_a_tie_is_the_first_token_s(ops: Ops, slots: SlotTable, free: ConstraintTable, device: torch.device) -> None:
    slots.temperature.zero_()
    logits = torch.zeros(1, VOCAB, device=device)
    logits[0, [40, 300, 1099]] = 2
    token_ids = torch.arange(0, 3 * VOCAB, 3, device=device)
    where = torch.tensor([2], device=device)
    for ids, expected in ((None, 40), (token_ids, 120)):
        ops.draft_sampled(logits, ids, where, where, slots, free)
        assert slots.tokens[2, 2] == expected


def test_rows_without_a_finite_logit_draft_some_token(
    ops: Ops, slots: SlotTable, free: ConstraintTable, device: torch.device
) -> None:
    token_ids = torch.arange(5, 5 + 70, device=device)
    rows, positions = rows_of(device)
    slots.tokens.fill_(-7)
    hopeless = torch.full((ROWS, 70), float("-inf"), device=device)
    ops.draft_sampled(hopeless, token_ids, rows, positions, slots, free)
    stored = positions >= 0
    drafted = slots.tokens[rows[stored], positions[stored]]
    assert drafted.min() >= 0
    assert drafted.max() < 75


def test_forced_tokens_are_drafted_instead_and_read_by_the_next_pass(
    ops: Ops, slots: SlotTable, device: torch.device
) -> None:
    """Slot 3's state forces two tokens, slot 1's one. The other rows have the best token, and one of them no draft."""
    constraints = ConstraintTable.allocate(8, VOCAB, words=256, masks=4, samples=2, device=device)
    for slot, state, drafts in ((3, 64, (501, 502)), (1, 128, (601,))):
        constraints.states[slot] = state
        constraints.words[state + DRAFTS] = state + 32
        forced = torch.tensor([len(drafts), *drafts], dtype=torch.int32, device=device)
        constraints.words[state + 32 : state + 32 + len(forced)] = forced
    slots.temperature.zero_()
    slots.lengths.fill_(10)
    logits = torch.zeros(5, 20, device=device)
    logits[:, 7] = 1
    rows = torch.tensor([3, 1, 2, 0, 4], device=device)
    for step, expected in enumerate(([501, 601, 7, 7], [502, 7, 7, 7], [7, 7, 7, 7])):
        positions = torch.tensor([10 + step] * 4 + [-1], device=device)
        nothing = torch.empty(0, dtype=torch.int64, device=device)
        ids = torch.zeros(5, dtype=torch.int64, device=device)
        batch = Batch(ids, nothing, nothing, nothing, nothing, nothing, nothing, (), ())
        following = Inputs(batch, rows, torch.where(positions < 0, -1, positions + 1))
        before = slots.tokens[4].clone()
        ops.draft_sampled(logits, None, rows, positions, slots, constraints, following)
        assert slots.tokens[rows[:4], positions[:4]].tolist() == expected
        assert ids[:4].tolist() == expected
        assert torch.equal(slots.tokens[4], before)
