"""Batching, chunking, prefix hits, preemption and drafts never change an output: each request equals its solo run."""

from __future__ import annotations

import random

import pytest
import torch
from covering import covering
from drafters import Adversary, oracle
from equality import GREEDY, KINDS, assert_same, prompts, run_all, solo_runs
from tiny import Client, alone, free_constraints, tiny_core

from draftline.engine.config import DrafterName, EngineConfig
from draftline.engine.drafting.build import DRAFTERS
from draftline.engine.params import SamplingParams
from draftline.kernels.reference.ops import ReferenceOps


@pytest.mark.parametrize(
    ("num_slots", "token_budget", "prefix_caching", "steps_ahead"),
    covering(
        {str(slots): slots for slots in (1, 3, 16)},
        {str(budget): budget for budget in (9, 64, 512)},
        {"prefix cache": True, "no prefix cache": False},
        {str(steps): steps for steps in (0, 1, 3)},
    ),
)
def test_batched_equals_solo(num_slots: int, token_budget: int, prefix_caching: bool, steps_ahead: int) -> None:
    client = Client(
        tiny_core(
            num_slots=num_slots, token_budget=token_budget, prefix_caching=prefix_caching, steps_ahead=steps_ahead
        )
    )
    results = run_all(client, KINDS, 1)
    for i, expected in enumerate(solo_runs(KINDS, 1)):
        assert_same(results[str(i)], expected)


@pytest.mark.parametrize("steps_ahead", [0, 1, 3])
def test_preemption_changes_nothing(steps_ahead: int) -> None:
    client = Client(tiny_core(num_blocks=14, num_slots=8, token_budget=32, steps_ahead=steps_ahead))
    results = run_all(client, 16, 1)
    assert client.core.stats().preemptions > 0, "the pool was not tight enough to preempt"
    for i, expected in enumerate(solo_runs(16, 1)):
        assert_same(results[str(i)], expected)


def test_a_prefix_hit_changes_nothing_and_is_reported() -> None:
    client = Client(tiny_core())
    prompt = prompts(1, seed=5, longest=40)[0] + list(range(1, 30))
    client.submit("first", prompt, GREEDY)
    client.run()
    client.submit("second", prompt, GREEDY)
    results = client.run()
    assert_same(results["second"], results["first"])
    finished = results["second"].outputs[0].finished
    assert finished is not None
    assert finished.usage.cached_tokens == (len(prompt) - 1) // 8 * 8


def test_n_outputs_equal_separate_requests_with_consecutive_seeds() -> None:
    prompt = prompts(1, seed=3)[0]
    together = alone(prompt, SamplingParams(n=4, seed=100, max_tokens=12))
    assert len({tuple(o.token_ids) for o in together.outputs}) > 1
    for i, output in enumerate(together.outputs):
        single = alone(prompt, SamplingParams(seed=100 + i, max_tokens=12)).outputs[0]
        assert (output.index, output.token_ids) == (i, single.token_ids)
        assert output.finished is not None
        assert output.finished.seed == 100 + i


def test_an_unseeded_request_reports_a_seed_that_repeats_it() -> None:
    prompt = prompts(1, seed=4)[0]
    first = alone(prompt, SamplingParams(max_tokens=12)).outputs[0]
    assert first.finished is not None
    assert (
        alone(prompt, SamplingParams(max_tokens=12, seed=first.finished.seed)).outputs[0].token_ids == first.token_ids
    )


@pytest.mark.parametrize(
    ("name", "drafts", "steps_ahead"),
    covering(
        {name: name for name in ("random", "always wrong")},
        {str(drafts): drafts for drafts in (1, 4)},
        {str(steps): steps for steps in (0, 1, 3)},
    ),
)
def test_drafts_change_nothing(name: str, drafts: int, steps_ahead: int) -> None:
    draw = random.Random(7)
    guess = {"random": lambda known, ahead: draw.randrange(256), "always wrong": lambda known, ahead: 255}[name]
    client = Client(tiny_core(drafter=Adversary(drafts, guess), num_slots=5, token_budget=40, steps_ahead=steps_ahead))
    results = run_all(client, KINDS, 1)
    for i, expected in enumerate(solo_runs(KINDS, 1)):
        assert_same(results[str(i)], expected)


@pytest.mark.parametrize(
    ("name", "drafts", "steps_ahead"),
    covering(
        {name: name for name in DRAFTERS},
        {str(drafts): drafts for drafts in (1, 2, 4, 8)},
        {str(steps): steps for steps in (0, 1)},
        max_pairs=12,
    ),
)
def test_no_drafter_changes_anything(name: DrafterName, drafts: int, steps_ahead: int) -> None:
    config = EngineConfig(drafter=name) if name == "none" else EngineConfig(drafter=name, draft_tokens=drafts)
    table = free_constraints(5, drafts)
    drafter = DRAFTERS[name](config, ReferenceOps(), table, torch.device("cpu"))
    client = Client(
        tiny_core(drafter=drafter, constraints=table, num_slots=5, token_budget=40, steps_ahead=steps_ahead)
    )
    results = run_all(client, KINDS, 1)
    assert (client.core.stats().drafted_tokens > 0) == (drafter.max_draft_tokens > 0)
    for i, expected in enumerate(solo_runs(KINDS, 1)):
        assert_same(results[str(i)], expected)


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("wrong_every", [0, 2, 3, 5])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_that_are_right_are_accepted(temperature: float, wrong_every: int, steps_ahead: int) -> None:
    """Plain decoding's own tokens, but for some places: everything before such a place is accepted, it never is."""
    prompt = prompts(1, seed=9)[0]
    sampling = SamplingParams(temperature=temperature, seed=4, max_tokens=41, ignore_eos=True)
    right = [*prompt, *alone(prompt, sampling).outputs[0].token_ids]

    client = Client(tiny_core(drafter=oracle(4, [right], wrong_every=wrong_every), steps_ahead=steps_ahead))
    client.submit("one", prompt, sampling)
    output = client.run()["one"].outputs[0]
    assert [*prompt, *output.token_ids] == right
    assert output.finished is not None
    speculation = output.finished.speculation
    if not wrong_every:
        assert speculation.accepted == speculation.drafted > 0
        assert steps_ahead or speculation.steps == -(-41 // 5)
    else:
        assert 0 < speculation.accepted < speculation.drafted


def test_accepted_drafts_behind_an_output_s_end_do_not_count() -> None:
    """The engine's counts are the sums of its outputs'."""
    prompt = prompts(1, seed=9)[0]
    sampling = SamplingParams(temperature=0.8, seed=4, max_tokens=41, ignore_eos=True)
    right = alone(prompt, sampling).outputs[0].token_ids
    last = next(index for index, token in enumerate(right) if index % 5 == 2 and token not in right[:index])

    client = Client(tiny_core(drafter=oracle(4, [[*prompt, *right]])))
    client.submit("one", prompt, sampling.model_copy(update={"stop_token_ids": (right[last],)}))
    finished = client.run()["one"].outputs[0].finished
    stats = client.core.stats()
    assert finished is not None
    assert finished.usage.completion_tokens == last + 1 == finished.speculation.steps + finished.speculation.accepted
    assert stats.drafter.accepted_by_position == finished.speculation.accepted_by_position
    assert stats.drafter.steps + stats.drafter.accepted == stats.generated_tokens
