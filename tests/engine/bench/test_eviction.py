"""The replay of traces on the real block pool, with the engine's policy and others."""

from __future__ import annotations

import pytest

from draftline.engine.bench.eviction import POLICIES, Event, compare, simulate, trace
from draftline.engine.bench.load.lengths import Lengths
from draftline.engine.bench.load.workloads import Workload

AGENTS = Workload(
    "agents",
    8,
    Lengths(8, 24),
    Lengths(8, 16),
    "poisson",
    2.0,
    turns=4,
    shared_prefix=64,
    later=Lengths(8, 40),
    think_s=1.0,
)


def event(start: float, *prompt: int) -> Event:
    return Event(start, start + 0.5, prompt, (9, 9))


def test_a_turn_begins_when_the_one_before_has_ended() -> None:
    events = trace(AGENTS.draw(100, 0), 0.001, 0.01, 0)
    assert len(events) == 32
    assert [one.begins_s for one in events] == sorted(one.begins_s for one in events)
    longest = max(events, key=lambda one: len(one.prompt))
    earlier = [one for one in events if one.prompt == longest.prompt[: len(one.prompt)] and one is not longest]
    assert len(earlier) == 3
    assert all(one.ends_s <= longest.begins_s for one in earlier)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_a_large_cache_finds_all_that_was_computed_before(policy: str) -> None:
    events = [event(0, 1, 1, 2, 2, 3), event(1, 1, 1, 2, 2, 3, 9, 9), event(2, 1, 1, 4, 4)]
    assert simulate(events, 50, 2, POLICIES[policy](2, 50)) == (6 + 2, 16, 0)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_turns_that_do_not_fit_together_wait_and_those_that_never_fit_are_counted(policy: str) -> None:
    together = [Event(0, 9, (1, 2, 3, 4), (5, 6)), Event(1, 9, (7, 8, 3, 4), (5, 6))]
    found, total, refused = simulate([*together, Event(2, 9, tuple(range(100)), (1,))], 4, 2, POLICIES[policy](2, 4))
    assert (found, total, refused) == (0, 8, 1)


def test_a_shared_prefix_outlives_prompts_that_come_once() -> None:
    """Segmented LRU keeps what plain LRU loses: a prefix that is used now and then among single prompts."""
    events = [event(0, 1, 1, 2, 2, 3), event(1, 1, 1, 2, 2, 4)]
    events += [event(2 + number, *range(10 * number + 20, 10 * number + 28)) for number in range(4)]
    events.append(event(10, 1, 1, 2, 2, 5))
    found = {name: simulate(events, 10, 2, POLICIES[name](2, 10))[0] for name in ("lru", "segmented")}
    assert found == {"lru": 4, "segmented": 8}


def test_the_comparison_has_every_policy_at_every_size() -> None:
    lines = list(compare(trace(AGENTS.draw(100, 0), 0.001, 0.01, 0), [0.2, 1.5], 8))
    assert [(line["policy"], line["cache_share"]) for line in lines] == [(p, s) for s in (0.2, 1.5) for p in POLICIES]
    whole = {line["hit_rate"] for line in lines if line["cache_share"] == 1.5}
    assert len(whole) == 1  # nothing is evicted
