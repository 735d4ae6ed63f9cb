"""Acceptance as a server would count it, compared with a server simulated token by token."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from random_checkpoint import llama

from draftline.kernels.reference.ngram import continuation
from draftline.models.checkpoints.dummy import DummyCheckpoint
from draftline.spec.train_draft.acceptance import Acceptance, draft_acceptance, ngram_acceptance, served
from draftline.spec.train_draft.decoder import Draft, FrozenTarget
from draftline.spec.train_draft.packing import pack
from draftline.spec.train_draft.samples import Kind, Sample, Split

CONFIG = llama(
    vocab_size=12,
    hidden_size=16,
    intermediate_size=32,
    num_layers=3,
    num_heads=2,
    num_kv_heads=1,
    max_positions=128,
    sliding_windows=(None,) * 3,
)


def simulate(sample: Sample, propose: Callable[[list[int]], Sequence[int]]) -> list[int]:
    """The number of drafts that each verify step accepts, if the target writes the sample's answer."""
    text = sample.tokens.tolist()
    known, accepted = text[: sample.prompt_len + 1], []
    while len(known) < len(text):
        right = 0
        for draft in propose(known):
            if len(known) + right == len(text) or draft != text[len(known) + right]:
                break
            right += 1
        accepted.append(right)
        known = text[: len(known) + right + 1]
    return accepted


def counted(accepted: list[int], samples: Sequence[Sample], draft_tokens: int) -> Acceptance:
    by_position = tuple(sum(right > position for right in accepted) for position in range(draft_tokens))
    return Acceptance(len(accepted), sum(s.answer_len - 1 for s in samples), by_position)


def repetitive_samples(count: int) -> list[Sample]:
    rng = random.Random(4)
    samples = []
    for _ in range(count):
        phrase = [rng.randrange(CONFIG.vocab_size) for _ in range(rng.randint(2, 9))]
        tokens = [rng.choice(phrase) if rng.random() < 0.2 else phrase[i % len(phrase)] for i in range(50)]
        samples.append(Sample(np.array(tokens, np.int32), rng.randint(1, 20), Kind.GENERAL, Split.REPORT))
    return [*samples, Sample(np.array([1, 2], np.int32), 1, Kind.GENERAL, Split.REPORT)]


@pytest.mark.parametrize("draft_tokens", [1, 3, 4])
def test_ngram(draft_tokens: int) -> None:
    samples = repetitive_samples(20)
    accepted = [right for s in samples for right in simulate(s, lambda known: continuation(known, draft_tokens, 4))]
    found = ngram_acceptance(samples, draft_tokens, 4)
    assert found == counted(accepted, samples, draft_tokens)
    assert 1.2 < found.length < draft_tokens + 1


@pytest.mark.parametrize(
    ("draft_tokens", "count"), [(4, 12), *(pytest.param(tokens, 40, marks=pytest.mark.slow) for tokens in (1, 4))]
)
def test_draft_model(draft_tokens: int, count: int) -> None:
    target = FrozenTarget(DummyCheckpoint(CONFIG), torch.float32, torch.device("cpu"))
    with torch.no_grad():
        for parameter in target.layers.parameters():
            parameter.mul_(12 if parameter.ndim == 2 else 1)
    draft = Draft.from_layers(target, [0, 1])
    samples = [written(target, s) for s in repetitive_samples(count)]

    def propose(known: list[int]) -> list[int]:
        drafts: list[int] = []
        for _ in range(draft_tokens):
            drafts.append(greedy(draft, target, known + drafts))
        return drafts

    accepted = [right for s in samples for right in simulate(s, propose)]
    found = draft_acceptance(draft, target, samples, draft_tokens)
    assert found == counted(accepted, samples, draft_tokens)
    assert 1.05 < found.length < draft_tokens + 1


def test_the_target_itself_accepts_everything() -> None:
    target = FrozenTarget(DummyCheckpoint(CONFIG), torch.float32, torch.device("cpu"))
    draft = Draft.from_layers(target, [0, 1, 2])
    samples = [written(target, s) for s in repetitive_samples(3)]
    found = draft_acceptance(draft, target, samples, 4)
    assert found.tokens == sum(s.answer_len - 1 for s in samples)
    assert found.verifies == sum(-(-(s.answer_len - 1) // 5) for s in samples)


def test_nothing_to_verify() -> None:
    assert served([(1, lambda index: 4)], 4) == Acceptance(0, 0, (0, 0, 0, 0))
    assert served([], 2).length == 0.0


def test_lengths_and_rates() -> None:
    found = served([(11, lambda index: 2 if index < 6 else 0)], 4)
    # Two drafts are right from 1 and from 4 on; none is from 7 on.
    assert found == Acceptance(6, 10, (2, 2, 0, 0))
    assert found.length == pytest.approx(10 / 6)
    assert found.rates == pytest.approx((1 / 3, 1 / 3, 0, 0))


def greedy(model: Draft | FrozenTarget, target: FrozenTarget, known: list[int]) -> int:
    tokens = np.array([*known, 0], np.int32)
    packed = pack([Sample(tokens, len(known), Kind.GENERAL, Split.REPORT)], torch.device("cpu"))
    with torch.no_grad():
        return int(F.linear(model.hidden(packed), target.head).argmax(-1))


def written(target: FrozenTarget, sample: Sample) -> Sample:
    """The prompt of the sample, with the target's own answer."""
    text = sample.tokens[: sample.prompt_len].tolist()
    while len(text) < min(len(sample.tokens), 40):
        text.append(greedy(target, target, text))
    return Sample(np.array(text, np.int32), sample.prompt_len, sample.kind, sample.split)
