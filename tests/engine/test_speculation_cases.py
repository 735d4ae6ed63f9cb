"""Generated cases: any drafter, draft length, batch, budget, cache and request; every output equals its solo run's.

A case is one request in one engine. Engines are drawn: drafter and its quality, K from 0 to 8, slots, token budget, cache
size (small ones preempt), prefix caching, steps ahead, when it drafts. So are requests: prompts that begin alike, every
kind of sampling, stops, several outputs, priorities, and what they ask of speculation.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import pytest
import torch
from drafters import Adversary, SomeSteps, oracle
from equality import SAMPLING_KINDS, assert_same
from tiny import Client, alone, draft_model, tiny_core
from tiny_head import eagle3, tiny_head

from draftline.engine.core import Core
from draftline.engine.outputs import RequestOutput
from draftline.engine.params import SamplingParams, Speculation
from draftline.kernels.reference.ops import ReferenceOps
from draftline.spec.drafter import Drafter
from draftline.spec.ngram import NGram
from draftline.spec.ngram_table import NGramTable
from draftline.spec.no_drafter import NoDrafter

_REQUESTS = 16
_PROMPTS = 12


@functools.cache
def request_pool() -> list[tuple[tuple[int, ...], SamplingParams]]:
    """Requests that engines draw from, so that each is run alone only once."""
    draw = random.Random(11)
    shared = [draw.randrange(1, 256) for _ in range(40)]
    prompts = [
        (*shared[: draw.choice((0, 8, 16, 27))], *(draw.randrange(1, 256) for _ in range(draw.randint(1, 40))))
        for _ in range(_PROMPTS)
    ]
    kinds = [
        *SAMPLING_KINDS,
        {"temperature": 0.9, "n": 2},
        {"temperature": 1.0, "stop": ("e", "a"), "min_tokens": 2},
        {"temperature": 1.0, "stop_token_ids": tuple(range(3, 256, 9))},
        {"temperature": 0.0, "ignore_eos": True, "logit_bias": {3: 2.5, 4: 2.5}},
    ]
    return [
        (prompt, SamplingParams(**kind, seed=draw.randrange(2**64), max_tokens=draw.randint(5, 32)))  # type: ignore[arg-type]
        for prompt in prompts
        for kind in kinds
    ]


@functools.cache
def solo(index: int) -> RequestOutput:
    return alone(*request_pool()[index])


def drafter(draw: random.Random, chosen: Sequence[int], num_blocks: int) -> Drafter:
    drafts = draw.randint(0, 8)
    pool = request_pool()
    texts = [[*pool[i][0], *output.token_ids] for i in chosen for output in solo(i).outputs]
    kinds = (
        lambda: NGram(drafts, ReferenceOps()),
        lambda: NGramTable(drafts, 256, ReferenceOps(), torch.device("cpu")),
        lambda: draft_model(drafts, noise=0.0, num_blocks=num_blocks),
        lambda: draft_model(drafts, noise=0.03, num_blocks=num_blocks),
        lambda: draft_model(drafts, noise=1.0, num_blocks=num_blocks),
        lambda: eagle3(tiny_head(), drafts, num_blocks=num_blocks),
        lambda: Adversary(drafts, lambda known, ahead: draw.randrange(256)),
        lambda: Adversary(drafts, lambda known, ahead: 255),
        lambda: oracle(drafts, texts, wrong_every=draw.choice((0, 2, 3, 5))),
    )
    return draw.choice(kinds)() if drafts else NoDrafter()


def engine(draw: random.Random, chosen: Sequence[int]) -> Core:
    num_blocks = draw.choice((64, 64, 14))
    seed = draw.random()
    return tiny_core(
        drafter=drafter(draw, chosen, num_blocks),
        num_blocks=num_blocks,
        num_slots=draw.choice((1, 2, 3, 5, 8, 16)),
        token_budget=draw.choice((9, 24, 64, 512)),
        prefix_caching=draw.random() < 0.7,
        steps_ahead=draw.choice((0, 1, 1, 3)),
        policy=(lambda drafting: SomeSteps(drafting, int(seed * 1e9))) if seed < 0.5 else (lambda drafting: drafting),
    )


def speculation(draw: random.Random) -> Speculation:
    return draw.choice(
        (Speculation(), Speculation(), Speculation(draft_tokens=draw.randint(0, 3)), Speculation(enabled=False))
    )


def check(seed: int) -> None:
    draw = random.Random(seed)
    chosen = draw.sample(range(len(request_pool())), _REQUESTS)
    core = engine(draw, chosen)
    client = Client(core)
    for name, index in enumerate(chosen):
        prompt, sampling = request_pool()[index]
        client.submit(str(name), prompt, sampling, draw.choice((0, 0, 0, 5)), speculation(draw))
        for _ in range(draw.choice((0, 0, 0, 1, 4))):
            core.step()
    results = client.run()
    for name, index in enumerate(chosen):
        assert_same(results[str(name)], solo(index))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, *range(2, 8)))])
def test_a_few_generated_cases(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1130))
def test_2080_generated_cases(seed: int) -> None:
    check(seed)
