"""Callers share the engine by their weights, whatever one of them has queued."""

from __future__ import annotations

import itertools
import random

import pytest
from tiny import Client, ticking, tiny_core

from draftline.engine.errors import QueueFullError
from draftline.engine.outputs import Delta, Failed
from draftline.engine.params import SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.backlog import displaced_by
from draftline.engine.request.request import Request, RequestBuilder
from draftline.engine.scheduling.fairness import FairShares


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=1, ignore_eos=True)


def tokens_by_caller(client: Client) -> dict[str, int]:
    counts = {"a": 0, "b": 0}
    for name, update in client.updates:
        if isinstance(update, Delta):
            counts[name[0]] += len(update.token_ids)
    return counts


def test_a_single_request_does_not_wait_behind_another_callers_many() -> None:
    client = Client(tiny_core(num_slots=4, token_budget=64, clock=ticking()))
    for index in range(200):
        client.submit(f"a{index}", [1, index % 50], params(40), caller="a")
    for _ in range(30):
        client.core.step()
    client.submit("b", [1, 2, 3], params(5), caller="b")
    steps = 0
    while tokens_by_caller(client)["b"] < 5:
        client.core.step()
        client.core.check()
        steps += 1
    assert steps <= 8  # it is admitted at once, and decodes with the others
    assert sum(isinstance(update, Delta) for _, update in client.updates) < 500


@pytest.mark.parametrize("weight", [pytest.param(1.0, marks=pytest.mark.slow), 3.0])
def test_the_tokens_of_two_callers_are_as_their_weights(weight: float) -> None:
    rng = random.Random(1)
    client = Client(tiny_core(num_slots=4, token_budget=64, clock=ticking()))
    for index in range(70):
        client.submit(f"a{index}", [1] * rng.randint(2, 12), params(rng.randint(5, 25)), caller="a")
    for index in range(70):
        client.submit(f"b{index}", [1] * rng.randint(2, 12), params(rng.randint(5, 25)), caller="b", weight=weight)
    while sum(tokens_by_caller(client).values()) < 1000:
        client.core.step()
    counts = tokens_by_caller(client)
    assert counts["b"] / counts["a"] == pytest.approx(weight, rel=0.1)
    assert len(client.run()) == 140  # no request starves


def test_the_places_of_a_caller_are_in_order_and_those_of_others_come_between() -> None:
    shares = FairShares(seconds_per_token=0.01)
    heavy = [shares.order("a", 1.0, 0.0, 100, now=5.0) for _ in range(4)]
    assert heavy == pytest.approx([5.0, 6.0, 7.0, 8.0])
    assert shares.order("b", 2.0, 0.0, 100, now=5.5) == pytest.approx(5.5)
    assert shares.order("b", 2.0, 0.0, 100, now=5.5) == pytest.approx(6.0)
    assert shares.order("a", 1.0, 5.0, 100, now=6.0) == pytest.approx(1.0)  # priority buys a head start
    assert shares.order("a", 1.0, 0.0, 100, now=20.0) == pytest.approx(20.0)  # an idle caller saves up nothing
    for _ in range(200):
        shares.measure(tokens=10, seconds=0.5)
    assert shares.seconds_per_token == pytest.approx(0.05)


def test_callers_that_have_gone_are_forgotten() -> None:
    shares = FairShares()
    for index in range(20_000):
        shares.order(f"caller{index}", 1.0, 0.0, 10, now=float(index))
    assert len(shares._done_at) <= 4096


def test_many_flows_with_work_are_seldom_looked_through() -> None:
    shares = FairShares()
    swept = 0
    for priority in range(20_000):
        before = shares._done_at
        shares.order("caller", 1.0, float(priority), 1000, now=0.0)
        swept += shares._done_at is not before
    assert len(shares._done_at) == 20_000
    assert swept == 3  # at 4,096, 8,192 and 16,384


@pytest.fixture
def make() -> object:
    core = tiny_core()
    builder = RequestBuilder(core.info, core.tokenizer, 5.0, core.compiler)
    names = itertools.count()

    def make(caller: str, tokens: int = 10, priority: int = 0) -> Request:
        wanted = GenerateRequest([1], SamplingParams(max_tokens=tokens), priority=priority, caller=caller)
        return builder.build(f"{caller}{next(names)}", wanted, lambda updates: None, 0.0)

    return make


def test_the_heaviest_caller_s_last_request_of_the_lowest_priority_is_displaced(make) -> None:  # type: ignore[no-untyped-def]
    waiting = [make("a"), make("a", priority=-1), make("a", priority=-1), make("a"), make("b")]
    assert displaced_by(make("b"), waiting) is waiting[2]
    assert displaced_by(make("c"), waiting) is waiting[2]
    assert displaced_by(make("a"), waiting) is waiting[2]  # its own, of a lower priority
    assert displaced_by(make("a", priority=-1), waiting) is None
    assert displaced_by(make("b", tokens=100), waiting) is None  # with it, b would be the heaviest
    assert displaced_by(make("b"), []) is None


def test_a_displaced_request_fails_with_a_delay_and_no_other_does() -> None:
    core = tiny_core(num_slots=1)
    client = Client(core)
    for index in range(3):
        client.submit(f"a{index}", [1, 2], params(5), caller="a")
    core.step()
    core.displace("a0", QueueFullError("full", 1.0))  # it runs: nothing happens
    core.displace("a2", QueueFullError("full", 1.0))
    core.displace("unknown", QueueFullError("full", 1.0))
    while core.has_work:
        core.step()
        core.check()
    failed = {name: update.error for name, update in client.updates if isinstance(update, Failed)}
    assert failed.keys() == {"a2"}
    assert isinstance(failed["a2"], QueueFullError)
    assert len(core.backlog) == core.backlog.tokens == 0
