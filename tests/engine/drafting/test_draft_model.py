"""A draft model with a cache of its own: outputs stay plain decoding's, and the cache keeps up with the target's."""

from __future__ import annotations

import pytest
import torch
from covering import covering
from drafters import SomeSteps, chunks_of
from equality import KINDS, assert_same, prompts, run_all, samplings, solo_runs
from tiny import CONFIG, Client, alone, draft_model, tiny_core

from draftline.engine.core import Core
from draftline.engine.params import SamplingParams, Speculation
from draftline.kernels.batch import Batch, KVCache
from draftline.spec.draft_model import DraftModel


def audit(core: Core, drafter: DraftModel) -> int:
    """Compare the draft cache of all current sequences with one computed at once; returns how many there were.

    A sequence whose block was just joined with an equal one is looked at by the next plan, and is no business of this.
    """
    drafting, cache = core._policy, drafter._cache
    changing = core._scheduler._cache._first_changed
    size = cache.block_size
    count = 0
    for sequence in core._scheduler.running:
        if sequence not in drafting._current or sequence in changing or len(sequence.tokens) < 3:
            continue
        length = len(sequence.tokens) - 2
        expected = computed_at_once(drafter, sequence.tokens[:length])
        where = torch.tensor([sequence.blocks[i // size] * size + i % size for i in range(length)])
        for layer, right in zip(cache.layers, expected.layers, strict=True):
            for kept, wanted in ((layer.keys, right.keys), (layer.values, right.values)):
                torch.testing.assert_close(
                    kept.flatten(0, 1)[where], wanted.flatten(0, 1)[:length], atol=1e-4, rtol=1e-4
                )
        count += 1
    return count


def computed_at_once(drafter: DraftModel, tokens: list[int]) -> KVCache:
    """The draft model's cache of some tokens, in one forward pass."""
    length = len(tokens)
    blocks = -(-length // 8)
    cache = KVCache.allocate(
        CONFIG.num_layers,
        blocks,
        8,
        CONFIG.num_kv_heads,
        CONFIG.head_dim,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    places = torch.arange(length)
    batch = Batch(
        token_ids=torch.tensor(tokens),
        positions=places,
        cache_index=places,
        query_starts=torch.tensor([0, length], dtype=torch.int32),
        context_lens=torch.tensor([length], dtype=torch.int32),
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        logits_index=torch.zeros(0, dtype=torch.int64),
        query_lens_host=(length,),
        context_lens_host=(length,),
    )
    with torch.inference_mode():
        drafter._model.forward(batch, cache)
    return cache


@pytest.mark.parametrize(
    ("noise", "steps_ahead", "drafts"),
    covering(
        {"itself": 0.0, "alike": 0.03, "another": 1.0},
        {str(steps): steps for steps in (0, 1, 3)},
        {str(drafts): drafts for drafts in (1, 4)},
    ),
)
def test_a_draft_model_changes_nothing(noise: float, drafts: int, steps_ahead: int) -> None:
    client = Client(
        tiny_core(drafter=draft_model(drafts, noise=noise), num_slots=5, token_budget=40, steps_ahead=steps_ahead)
    )
    results = run_all(client, KINDS, 1)
    stats = client.core.stats()
    assert stats.drafted_tokens > stats.accepted_tokens * (noise > 0.0)
    for i, expected in enumerate(solo_runs(KINDS, 1)):
        assert_same(results[str(i)], expected)


@pytest.mark.parametrize(
    ("temperature", "steps_ahead"),
    [
        (0.0, 0),
        (0.8, 1),
        pytest.param(0.0, 1, marks=pytest.mark.slow),
        pytest.param(0.8, 0, marks=pytest.mark.slow),
    ],
)
def test_the_target_as_its_own_draft_is_always_right(temperature: float, steps_ahead: int) -> None:
    """Full acceptance: no draft may be lost to a cache that lacks the last draft of the round before."""
    sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=41, ignore_eos=True)
    for prompt in prompts(3, seed=2):
        client = Client(tiny_core(drafter=draft_model(4, noise=0.0), steps_ahead=steps_ahead))
        client.submit("one", prompt, sampling)
        output = client.run()["one"].outputs[0]
        assert output.token_ids == alone(prompt, sampling).outputs[0].token_ids
        assert output.finished is not None
        speculation = output.finished.speculation
        assert speculation.accepted == speculation.drafted > 0
        assert steps_ahead or speculation.steps <= -(-41 // 5) + (len(prompt) < 2)


@pytest.mark.parametrize(
    ("num_blocks", "prefix_caching"),
    [
        (64, True),
        pytest.param(64, False, marks=pytest.mark.slow),
        (14, True),
        pytest.param(14, False, marks=pytest.mark.slow),
    ],
    ids=["roomy-prefix cache", "roomy-no prefix cache", "tight-prefix cache", "tight-no prefix cache"],
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_the_draft_cache_is_right_after_every_step(num_blocks: int, prefix_caching: bool, seed: int) -> None:
    """Drafts now and then, prefix hits, equal blocks joined, preemption, partial acceptance: what it has is right."""
    drafter = draft_model(3, noise=0.03, num_blocks=num_blocks)
    core = tiny_core(
        drafter=drafter,
        num_blocks=num_blocks,
        num_slots=5,
        token_budget=40,
        prefix_caching=prefix_caching,
        policy=lambda drafting: SomeSteps(drafting, seed),
    )
    client = Client(core)
    twice = zip(prompts(8, seed) * 2, samplings(16, seed), strict=True)
    for i, (prompt, sampling) in enumerate(twice):
        client.submit(str(i), prompt, sampling)
    audited = 0
    while core.has_work:
        core.step()
        core.check()
        audited += audit(core, drafter)
    assert audited > 20
    results = client.run()
    for i, (prompt, sampling) in enumerate(zip(prompts(8, seed) * 2, samplings(16, seed), strict=True)):
        assert_same(results[str(i)], alone(prompt, sampling))


def test_a_prefix_hit_brings_the_draft_cache_along() -> None:
    """The second request's drafts are as good as the first's, though the draft model sees only what is new."""
    drafter = draft_model(4, noise=0.0)
    client = Client(tiny_core(drafter=drafter))
    seen = chunks_of(client.core)
    prompt = prompts(1, seed=5, longest=40)[0] + list(range(1, 30))
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    for name in ("first", "second"):
        client.submit(name, prompt, sampling)
        finished = client.run()[name].outputs[0].finished
        assert finished is not None
        assert finished.speculation.accepted == finished.speculation.drafted > 0
    shared = (len(prompt) - 2) // 8 * 8
    assert [(chunk.start, chunk.count) for chunk in seen] == [
        (0, len(prompt) - 2),
        *([(shared, len(prompt) - 2 - shared)] if shared < len(prompt) - 2 else []),
    ]


def test_blocks_that_were_filled_without_drafts_are_caught_up() -> None:
    """A prefix that a request without speculation has computed is in the target's cache, not in the draft's."""
    client = Client(tiny_core(drafter=draft_model(4, noise=0.0)))
    prompt = list(range(1, 41))
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    client.submit("plain", prompt, sampling, speculation=Speculation(enabled=False))
    client.run()
    client.submit("drafted", prompt, sampling)
    results = client.run()
    finished = results["drafted"].outputs[0].finished
    assert finished is not None
    assert finished.usage.cached_tokens > 0
    assert finished.speculation.accepted == finished.speculation.drafted > 0
    assert_same(results["drafted"], results["plain"])


def test_a_prompt_longer_than_a_step_catches_up_over_several() -> None:
    client = Client(tiny_core(drafter=draft_model(4, noise=0.0), token_budget=16))
    prompt = [i % 200 + 1 for i in range(90)]
    sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    client.submit("one", prompt, sampling)
    output = client.run()["one"]
    assert_same(output, alone(prompt, sampling))
    finished = output.outputs[0].finished
    assert finished is not None
    assert finished.speculation.accepted == finished.speculation.drafted > 0
