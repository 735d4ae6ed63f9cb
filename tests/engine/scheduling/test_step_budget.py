"""The step's token budget follows measured time, and leaves outputs as they are."""

from __future__ import annotations

import math
import random

import pytest
import torch
from tiny import Client, alone, tiny_core

from draftline.engine.params import SamplingParams
from draftline.engine.scheduling.step_budget import FIRST_CHUNK, MIN_CHUNK, StepBudget
from draftline.kernels import select_ops
from draftline.spec.ngram import NGram


def run(budget: StepBudget, *, decode_s: float, token_s: float, steps: int = 50) -> list[float]:
    """The times of steps with four decoding sequences and a prompt without end."""
    times = []
    budget.measure(4, 0, decode_s)
    for _ in range(steps):
        tokens = budget.tokens(4)
        seconds = decode_s + token_s * (tokens - 4)
        budget.measure(4, tokens - 4, seconds)
        times.append(seconds)
    return times


@pytest.mark.parametrize("token_s", [0.0001, 0.001, 0.002])
def test_steps_beside_prompts_take_the_target(token_s: float) -> None:
    times = run(StepBudget(2048, 0.15), decode_s=0.03, token_s=token_s)
    expected = min(0.8 * 0.15, 0.03 + 2044 * token_s)
    assert times[-1] == pytest.approx(expected, rel=0.1)
    assert max(times) <= 0.15


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.4])
def test_nine_of_ten_steps_keep_the_target_on_a_machine_with_other_work(noise: float) -> None:
    """A step's time varies, and a prompt's token takes the longer, the more tokens are before it."""
    rng, budget, context, times = random.Random(0), StepBudget(2048, 0.1), 0, []
    for _ in range(30):
        budget.measure(1, 0, 0.014 * rng.lognormvariate(0, noise))
    for _ in range(600):
        chunk = min(budget.tokens(1) - 1, 1900 - context)
        seconds = (0.014 + chunk * (0.0016 + 0.7e-6 * context)) * rng.lognormvariate(0, noise)
        budget.measure(1, chunk, seconds)
        times.append(seconds)
        context = (context + chunk) % 1900
    assert sum(seconds > 0.1 for seconds in times) < 0.15 * len(times)
    assert sum(times) > 0.055 * len(times)  # and they are not made shorter than that takes


def test_a_slow_machine_keeps_the_target_from_its_first_step() -> None:
    """Two cores take 27 ms to decode, and 3.5 ms for each token of a prompt."""
    times = run(StepBudget(2048, 0.1), decode_s=0.027, token_s=0.0035)
    assert max(times) <= 0.1
    assert times[-1] == pytest.approx(0.08, rel=0.1)


def test_short_prompts_say_nothing_about_the_time_of_a_token() -> None:
    budget = StepBudget(2048, 0.1)
    for _ in range(50):
        budget.measure(4, 0, 0.005)
        budget.measure(4, 12, 0.006)
    for _ in range(12):
        budget.measure(4, 1000, 0.025)
    assert budget.tokens(4) == 2048


def test_one_slow_step_does_not_keep_chunks_small() -> None:
    budget = StepBudget(2048, 0.1)
    run(budget, decode_s=0.005, token_s=0.00005)
    for _ in range(3):
        budget.measure(4, 32, 2.0)
    assert budget.tokens(4) < 4 + 50
    assert run(budget, decode_s=0.005, token_s=0.00005)[-1] == pytest.approx(0.08, rel=0.1)


def test_prompts_always_make_progress_and_have_the_step_where_nobody_decodes() -> None:
    budget = StepBudget(512, 0.05)
    assert budget.tokens(0) == 512
    assert budget.tokens(3) == 3 + FIRST_CHUNK  # nothing is known yet
    budget.measure(3, 509, 30.0)
    assert budget.tokens(3) == 3 + MIN_CHUNK
    budget.measure(3, 0, 0.01)
    assert budget.tokens(3) == 3 + MIN_CHUNK
    assert budget.tokens(0) == 512
    assert StepBudget(512, math.inf).tokens(3) == 512


def test_a_slower_machine_gets_smaller_chunks_within_a_few_steps() -> None:
    budget = StepBudget(2048, 0.15)
    run(budget, decode_s=0.02, token_s=0.0005)
    assert max(run(budget, decode_s=0.02, token_s=0.002)[5:]) < 0.2


def test_chunks_grow_where_a_prompt_is_in_every_step() -> None:
    budget = StepBudget(2048, 0.1)
    for _ in range(20):
        budget.measure(1, budget.tokens(1) - 1, 0.005 + 0.00005 * budget.tokens(1))
    assert budget.tokens(1) > 1000


class Cut(StepBudget):
    """Small budgets that differ from step to step."""

    def __init__(self) -> None:
        super().__init__(64, 1.0)
        self._next = 0
        self.seen: list[int] = []

    def tokens(self, decoding: int) -> int:
        self._next = (self._next * 5 + 3) % 29
        self.seen.append(decoding)
        return decoding + 1 + self._next


def test_no_output_depends_on_the_budget() -> None:
    budget = Cut()
    client = Client(tiny_core(budget=budget))
    params = [SamplingParams(max_tokens=12, seed=seed, temperature=0.8, ignore_eos=True) for seed in range(6)]
    prompts = [[1 + seed, *range(3, 3 + 9 * seed)] for seed in range(6)]
    for seed, prompt in enumerate(prompts):
        client.submit(str(seed), prompt, params[seed])
    outputs = client.run()
    for seed, prompt in enumerate(prompts):
        assert outputs[str(seed)].outputs[0].token_ids == alone(prompt, params[seed]).outputs[0].token_ids
    assert max(budget.seen) >= 3


def test_sequences_whose_last_token_is_in_flight_do_not_make_chunks_small() -> None:
    budget = Cut()
    client = Client(tiny_core(budget=budget, steps_ahead=1, token_budget=8))
    for index in range(6):
        client.submit(str(index), [1 + index, *range(3, 10)], SamplingParams(max_tokens=1))
    client.run()
    assert len(budget.seen) >= 6
    assert max(budget.seen) == 0


class NothingLeft(StepBudget):
    """A token for each decoding sequence, as on a device whose steps take longer than the target in any case."""

    def tokens(self, decoding: int) -> int:
        return max(decoding, 1)


def test_a_step_without_prompts_has_all_drafts() -> None:
    core = tiny_core(budget=NothingLeft(64, 1.0), drafter=NGram(3, select_ops(torch.device("cpu"))))
    client = Client(core)
    for index in range(2):
        client.submit(str(index), [1 + index], SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    client.run()
    drafts = core.stats().drafter
    assert drafts is not None
    first, _, last = drafts.drafted_by_position
    assert first >= last > 0, "at the end, fewer tokens are left than drafts"
