"""Sequences of several tokens come as often as the model says, however they are drafted."""

from __future__ import annotations

import functools
from itertools import product

import pytest
import torch
from random_checkpoint import RandomCheckpoint, llama
from tiny import Client, draft_model, tiny_core

from draftline.engine.params import SamplingParams
from draftline.kernels import select_ops
from draftline.kernels.batch import Batch, KVCache
from draftline.models.families import build_model

CONFIG = llama(vocab_size=5, eos_token_ids=())
PROMPT = [1, 4, 2]
LENGTH = 3
TEMPERATURE, TOP_K = 0.8, 4
CPU = torch.device("cpu")
MODEL = build_model(RandomCheckpoint(CONFIG, std=0.3), CONFIG, select_ops(CPU), torch.float32, CPU)


@functools.cache
def next_token(tokens: tuple[int, ...]) -> torch.Tensor:
    """The exact distribution of the token after some, in float64."""
    count = len(tokens)
    cache = KVCache.allocate(
        CONFIG.num_layers, 1, 8, CONFIG.num_kv_heads, CONFIG.head_dim, dtype=torch.float32, device=CPU
    )
    places = torch.arange(count)
    batch = Batch(
        token_ids=torch.tensor(tokens), positions=places, cache_index=places,
        query_starts=torch.tensor([0, count], dtype=torch.int32), context_lens=torch.tensor([count], dtype=torch.int32),
        block_tables=torch.zeros((1, 1), dtype=torch.int32), logits_index=torch.tensor([count - 1]),
        query_lens_host=(count,), context_lens_host=(count,),
    )  # fmt: skip
    with torch.inference_mode():
        logits = MODEL.forward(batch, cache)[0].double()
    least = logits.topk(TOP_K).values[-1]
    return torch.where(logits < least, -torch.inf, logits / TEMPERATURE).softmax(-1)


@pytest.fixture(scope="module")
def expected() -> dict[tuple[int, ...], float]:
    """The probability of every sequence of LENGTH tokens."""
    found = {}
    for tokens in product(range(CONFIG.vocab_size), repeat=LENGTH):
        probability = 1.0
        for place, token in enumerate(tokens):
            probability *= float(next_token((*PROMPT, *tokens[:place]))[token])
        found[tokens] = probability
    assert sum(found.values()) == pytest.approx(1.0)
    return found


@pytest.mark.parametrize(
    ("noise", "draws"),
    [(0.1, 1200), *(pytest.param(noise, 3000, marks=pytest.mark.slow) for noise in (0.0, 0.1, 2.0))],
    ids=["alike, some", "itself", "alike", "another"],
)
def test_sequences_have_their_probability(noise: float, draws: int, expected: dict[tuple[int, ...], float]) -> None:
    drafter = draft_model(2, noise=noise, num_blocks=256, config=CONFIG)
    client = Client(tiny_core(drafter=drafter, num_slots=64, num_blocks=256, token_budget=512, config=CONFIG))
    for seed in range(draws // 60):
        sampling = SamplingParams(temperature=TEMPERATURE, top_k=TOP_K, seed=60 * seed, max_tokens=LENGTH, n=60)
        client.submit(str(seed), PROMPT, sampling)
    counts = dict.fromkeys(expected, 0)
    for result in client.run().values():
        for output in result.outputs:
            counts[tuple(output.token_ids)] += 1
    stats = client.core.stats().drafter
    assert stats.drafted > 0.5 * draws
    possible = [tokens for tokens, probability in expected.items() if probability * draws >= 5]
    rare = [tokens for tokens in expected if tokens not in possible]
    observed = [counts[tokens] for tokens in possible] + [sum(counts[tokens] for tokens in rare)]
    wanted = [expected[tokens] * draws for tokens in possible] + [sum(expected[tokens] for tokens in rare) * draws]
    if not wanted[-1]:
        assert observed.pop() == wanted.pop()
    from scipy.stats import chisquare  # takes seconds to load, in every process that collects this

    # Fixed seeds: the test does not change from run to run, and a fair sampler fails it once in ten thousand choices.
    assert chisquare(observed, wanted).pvalue > 1e-4
