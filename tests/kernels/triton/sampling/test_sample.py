from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import triton
import triton.language as tl
from bans import write_bans
from covering import covering
from torch import Tensor
from torch.testing import assert_close

from draftline.kernels.philox import gumbel
from draftline.kernels.reference import sampling
from draftline.kernels.slots import Masks, SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton.sampling.gumbel import gumbel_noise
from draftline.kernels.triton.sampling.sample import sample
from draftline.kernels.triton.sampling.scaled_logits import read_scaled

# The interpreter's numpy warns where the device's arithmetic just returns infinity or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NONE = SamplingFeatures.NONE
TEMPERATURE = SamplingFeatures.TEMPERATURE
TOP_K = SamplingFeatures.TOP_K
TOP_P = SamplingFeatures.TOP_P
MIN_P = SamplingFeatures.MIN_P
PENALTIES = SamplingFeatures.PENALTIES
LOGIT_BIAS = SamplingFeatures.LOGIT_BIAS
MIN_TOKENS = SamplingFeatures.MIN_TOKENS
ALLOWED_IDS = SamplingFeatures.ALLOWED_IDS
BAD_WORDS = SamplingFeatures.BAD_WORDS

ROWS = 6
MAX_LEN = 40


@triton.jit
def _noise_kernel(out: tl.tensor, positions: tl.tensor, seeds: tl.tensor, BLOCKS: tl.constexpr) -> None:
    row = tl.program_id(0)
    noise = gumbel_noise(tl.arange(0, BLOCKS), tl.load(positions + row), tl.load(seeds + row))
    tl.store(out + row * 4 * BLOCKS + tl.arange(0, 4 * BLOCKS), noise)


def test_noise_is_the_reference_s(device: torch.device) -> None:
    seeds = torch.tensor([0, 1, -1, 2**62 + 12345, -(2**63)], device=device)
    positions = torch.tensor([0, 7, 2**31, 2**32 - 1, 100_000], device=device)
    out = torch.empty(5, 256, device=device)
    _noise_kernel[(5,)](out, positions, seeds, BLOCKS=64)
    # A device's logarithms are fast ones.
    assert_close(out, gumbel(seeds, positions, 256), rtol=2e-6, atol=1e-5 if device.type == "cuda" else 1e-6)


@triton.jit
def _scaled_kernel(out: tl.tensor, logits: tl.tensor, divisors: tl.tensor, COUNT: tl.constexpr) -> None:
    row = tl.program_id(0)
    index = row * COUNT + tl.arange(0, COUNT)
    divisor = tl.load(divisors + row)
    tl.store(out + index, read_scaled(logits, logits, index, index >= 0, divisor, MASKED=False))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_quotients_are_rounded_correctly(dtype: torch.dtype, device: torch.device, rng: torch.Generator) -> None:
    magnitudes = 2.0 ** torch.randint(-20, 20, (64, 1024), generator=rng, device=device)
    logits = (torch.randn(64, 1024, generator=rng, device=device) * magnitudes).to(dtype)
    logits[:, :4] = torch.tensor([0.0, float("inf"), -float("inf"), float("nan")], device=device)
    divisors = torch.rand(64, generator=rng, device=device) * 3 + 1e-5
    divisors[:2] = torch.tensor([1.0, 1.9999999], device=device)
    out = torch.empty(64, 1024, device=device)
    _scaled_kernel[(64,)](out, logits, divisors, COUNT=1024)
    expected = logits.float().cpu() / divisors[:, None].cpu()
    assert torch.equal(out.cpu(), expected.where(~expected.isnan(), torch.tensor(float("-inf"))))


def make_slots(vocab: int, device: torch.device, rng: torch.Generator) -> SlotTable:
    """Slots 0 to 7, each asking for something else."""
    slots = SlotTable.allocate(8, MAX_LEN, 4, device, vocab)

    def fill(target: Tensor, values: list[float]) -> None:
        target.copy_(torch.tensor(values, device=device))

    slots.tokens.copy_(torch.randint(0, vocab, slots.tokens.shape, generator=rng, device=device))
    slots.tokens[:, 5:9] = 3  # repeated, in prompt and output
    slots.seed.copy_(torch.randint(-(2**62), 2**62, (8,), generator=rng, device=device))
    slots.prompt_lens.fill_(7)
    slots.min_length.fill_(20)
    fill(slots.temperature, [0, 0.5, 1, 1.5, 0.8, 3, 1, 1e-6])
    fill(slots.top_k, [0, 0, 5, 50, 1, 100_000, 3, 1])
    fill(slots.top_p, [1, 0.9, 0.9, 0.5, 1, 0.99, 1, 0.3])
    fill(slots.min_p, [0, 0, 0.01, 0, 0.05, 0.5, 1, 0])
    fill(slots.repetition_penalty, [1, 1.2, 1, 0.7, 1.5, 1, 1, 1])
    fill(slots.presence_penalty, [1, 0, 0, -1, 0.5, 0, 1, 1])
    fill(slots.frequency_penalty, [1, 0, 0.3, 1, 0.5, 0, 1, 1])
    slots.stop_ids[:, 0] = 5
    slots.stop_ids[:, 1] = 1_000_000
    slots.bias_ids[:, :3] = torch.tensor([5, 11, 1_000_000], device=device)
    slots.bias_values[:, :3] = torch.tensor([30.0, 2.5, 99.0], device=device)
    for slot in range(0, 8, 2):
        write_bans(slots, slot, range(slot, vocab, 3), [])
    for slot in range(1, 8):
        # Words that the output's end begins, at some of the positions; more of them than a block holds.
        ends = [slots.tokens[slot, end - size : end].tolist() for end in (15, 19, 30) for size in range(4)]
        words = [[*end, token] for end in ends for token in range(slot, vocab, vocab // 20)]
        write_bans(slots, slot, range(1, vocab, 2) if slot == 2 else None, words[: 1024 // 4])
    return slots


def make_rows(features: SamplingFeatures, mask: Tensor | None, device: torch.device) -> SampleRows:
    slots = torch.tensor([3, 1, 2, 0, 4, 5], device=device)
    positions = torch.tensor([15, 30, 15, 40, 19, 7], device=device)
    return SampleRows(slots, positions, features, None if mask is None else numbered(mask))


def without_what_is_unused(slots: SlotTable, features: SamplingFeatures) -> None:
    """Kernels read some parameters of every row."""
    for feature, values, unused in (
        (TEMPERATURE, slots.temperature, 0.0),
        (TOP_K, slots.top_k, 0),
        (TOP_P, slots.top_p, 1.0),
        (MIN_P, slots.min_p, 0.0),
    ):
        if feature not in features:
            values.fill_(unused)


def numbered(mask: Tensor) -> Masks:
    """A mask for each row, in another order than the rows, behind the one that allows everything."""
    order = torch.arange(len(mask), 0, -1, dtype=torch.int32, device=mask.device)
    return Masks(torch.cat((torch.full_like(mask[:1], -1), mask.flip(0))), order)


def first_rows(rows: SampleRows, count: int) -> SampleRows:
    return dataclasses.replace(rows, slots=rows.slots[:count], positions=rows.positions[:count])


ASKED = {
    "greedy": (NONE, 3000),
    "noise": (TEMPERATURE, 1537),
    "top-k": (TEMPERATURE | TOP_K, 300),
    "top-p": (TEMPERATURE | TOP_P, 1100),
    "min-p": (TEMPERATURE | MIN_P, 70),
    "truncated": (TEMPERATURE | TOP_K | TOP_P | MIN_P, 1100),
    "penalties": (PENALTIES, 300),
    "bias-min-tokens": (TEMPERATURE | LOGIT_BIAS | MIN_TOKENS, 300),
    "allowed-ids": (ALLOWED_IDS, 300),
    "bad-words": (TEMPERATURE | BAD_WORDS, 300),
    "everything": (~NONE, 500),
}


@pytest.mark.parametrize(
    ("features", "vocab", "ties", "masked"),
    covering(ASKED, {"different": False, "ties": True}, {"free": False, "masked": True}),
)
def test_sample_is_the_reference_s(
    features: SamplingFeatures, vocab: int, ties: bool, masked: bool, device: torch.device, rng: torch.Generator
) -> None:
    slots = make_slots(vocab, device, rng)
    logits = 2 * torch.randn(ROWS, vocab, generator=rng, device=device)
    if ties:
        logits = logits.round()
    mask = None
    if masked:
        words = (ROWS, (vocab + 31) // 32)
        mask = torch.randint(-(2**31), 2**31, words, generator=rng, device=device, dtype=torch.int32)
    rows = make_rows(features, mask, device)
    without_what_is_unused(slots, features)
    before = logits.clone()
    assert sample(logits, rows, slots).tolist() == sampling.sample(logits, rows, slots).tolist()
    assert torch.equal(logits, before)


def test_allowed_ids_count_where_no_token_is_likely(device: torch.device, rng: torch.Generator) -> None:
    """Before min_tokens, and after the mask."""
    slots = make_slots(100, device, rng)
    asked = [[5], [5, 70], [70, 80], None, [40], [41]]
    for slot, ids in enumerate(asked):
        write_bans(slots, slot, ids, [])
    mask = torch.full((ROWS, 4), -1, dtype=torch.int32, device=device)
    mask[4:] = torch.tensor([0, 1 << 8, 0, 0], dtype=torch.int32)  # token 40
    positions = torch.full((ROWS,), 19, device=device)  # too early for token 5
    rows = SampleRows(torch.arange(ROWS, device=device), positions, ~NONE, numbered(mask))
    logits = torch.full((ROWS, 100), -math.inf, device=device)
    chosen = sample(logits, rows, slots).tolist()
    assert chosen == [5, 70, 70, 0, 40, 40]
    assert chosen == sampling.sample(logits, rows, slots).tolist()


@pytest.mark.parametrize("top_k", [1, 30])
def test_candidates_are_tried_until_one_survives(top_k: int, device: torch.device, rng: torch.Generator) -> None:
    """Where all tokens are as good as equal, the first winner is hardly ever among the k most likely."""
    slots = make_slots(1000, device, rng)
    slots.top_k.fill_(top_k)
    slots.temperature.fill_(50.0)
    slots.top_p.fill_(0.5)
    logits = torch.randn(2, 1000, generator=rng, device=device)
    rows = first_rows(make_rows(TEMPERATURE | TOP_K | TOP_P, None, device), 2)
    chosen = sample(logits, rows, slots)
    assert chosen.tolist() == sampling.sample(logits, rows, slots).tolist()
    better = (logits > logits.gather(1, chosen[:, None])).sum(dim=1)
    assert int(better.max()) < max(1, top_k // 2 + 1)


def test_equal_logits_are_cut_by_id(device: torch.device, rng: torch.Generator) -> None:
    slots = make_slots(100, device, rng)
    slots.temperature.fill_(1.0)
    slots.top_k.fill_(4)
    rows = first_rows(make_rows(TEMPERATURE | TOP_K, None, device), 4)
    without_what_is_unused(slots, rows.features)
    logits = torch.zeros(4, 100, device=device)
    logits[:, ::2] *= -1.0  # both zeros are one number
    logits[:, 70] = 1.0
    chosen = sample(logits, rows, slots).tolist()
    assert chosen == sampling.sample(logits, rows, slots).tolist()
    assert set(chosen) <= {0, 1, 2, 70}


def test_padding_takes_its_likeliest_token(device: torch.device, rng: torch.Generator) -> None:
    """Noise and truncation would take time for what is thrown away."""
    slots = make_slots(1000, device, rng)
    slots.temperature.fill_(50.0)
    slots.top_p.fill_(0.5)
    logits = torch.randn(ROWS, 1000, generator=rng, device=device)
    rows = make_rows(TEMPERATURE | TOP_P, None, device)
    padding = dataclasses.replace(rows, positions=torch.full_like(rows.positions, -1))
    assert sample(logits, padding, slots).tolist() == logits.argmax(dim=1).tolist()
    assert sample(logits, rows, slots).tolist() != logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("features", [NONE, TEMPERATURE, TEMPERATURE | TOP_K | TOP_P], ids=str)
def test_odd_logits(features: SamplingFeatures, device: torch.device, rng: torch.Generator) -> None:
    vocab = 100
    slots = make_slots(vocab, device, rng)
    logits = torch.randn(ROWS, vocab, generator=rng, device=device)
    logits[0, 3] = math.nan
    logits[1] = math.nan
    logits[2] = -math.inf
    logits[3, [40, 20]] = math.inf
    logits[4, [40, 20]] = math.inf
    logits[5, 1:] = -math.inf
    rows = make_rows(features, None, device)
    without_what_is_unused(slots, features)
    chosen = sample(logits, rows, slots).tolist()
    assert chosen == sampling.sample(logits, rows, slots).tolist()
    assert chosen[1:] == [0, 0, 20, 20, 0]


def test_a_row_without_a_token_falls_back(device: torch.device, rng: torch.Generator) -> None:
    """The lowest allowed id; a stop id, too early, only where nothing else is allowed; 0 if nothing is."""
    vocab = 2100
    slots = make_slots(vocab, device, rng)
    for slot in range(ROWS):
        write_bans(slots, slot, None, [[9]])
    allowed = [[5, 9], [5, 9], [5], [], [2050], [2099]]
    early = [True, False, True, True, True, True]
    bits = torch.zeros(ROWS, (vocab + 31) // 32 * 32, dtype=torch.int64, device=device)
    for row, ids in enumerate(allowed):
        bits[row, ids] = 1
    weights = 2 ** torch.arange(32, device=device)
    mask = (bits.view(ROWS, -1, 32) * weights).sum(dim=-1).to(torch.int32)
    positions = torch.tensor([19 if e else 20 for e in early], device=device)
    rows = SampleRows(torch.arange(ROWS, device=device), positions, ~NONE, numbered(mask))
    logits = torch.full((ROWS, vocab), -math.inf, device=device)
    chosen = sample(logits, rows, slots).tolist()
    assert chosen == [9, 5, 5, 0, 2050, 2099]
    assert chosen == sampling.sample(logits, rows, slots).tolist()


def test_a_row_does_not_depend_on_its_batch(device: torch.device, rng: torch.Generator) -> None:
    slots = make_slots(700, device, rng)
    logits = torch.randn(ROWS, 700, generator=rng, device=device)
    rows = make_rows(~NONE, None, device)
    together = sample(logits, rows, slots).tolist()
    for row in range(0, ROWS, 2):
        one = dataclasses.replace(rows, slots=rows.slots[row : row + 1], positions=rows.positions[row : row + 1])
        assert sample(logits[row : row + 1], one, slots).tolist() == [together[row]]
