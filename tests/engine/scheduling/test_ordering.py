"""The orders of the queue: by arrival, priority or length, and which options and priorities mean nothing in them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from tiny import Client, alone, ticking, tiny_core

from draftline.engine.config import EngineConfig
from draftline.engine.errors import InvalidRequestError
from draftline.engine.outputs import Finished
from draftline.engine.params import SamplingParams


def ends(client: Client) -> list[str]:
    """The requests in the order in which they ended."""
    return [name for name, update in client.updates if isinstance(update, Finished)]


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=1)


def test_by_arrival_a_callers_many_requests_do_hold_up_anothers() -> None:
    order = {}
    for scheduling in ("fcfs", "fair"):
        client = Client(tiny_core(num_slots=1, scheduling=scheduling, clock=ticking()))
        for index in range(5):
            client.submit(f"a{index}", [1, 2], params(3), caller="a")
        client.submit("b", [1, 2], params(3), caller="b")
        client.run()
        order[scheduling] = ends(client)
    assert order["fcfs"] == ["a0", "a1", "a2", "a3", "a4", "b"]
    assert order["fair"] == ["a0", "b", "a1", "a2", "a3", "a4"]


def test_the_highest_priority_comes_first_and_of_equal_ones_the_earliest() -> None:
    client = Client(tiny_core(num_slots=1, scheduling="priority"))
    for name, priority in (("low", -3), ("first", 0), ("second", 0), ("high", 1)):
        client.submit(name, [1, 2], params(3), priority=priority)
    outputs = client.run()
    assert ends(client) == ["high", "first", "second", "low"]
    assert outputs["high"].outputs[0].token_ids == alone([1, 2], params(3)).outputs[0].token_ids


def test_the_shortest_comes_first_prompt_and_output_together() -> None:
    client = Client(tiny_core(num_slots=1, scheduling="shortest"))
    for name, prompt, output in (("long", 9, 9), ("prompt", 9, 2), ("output", 2, 8), ("short", 2, 2)):
        client.submit(name, range(1, prompt + 1), params(output))
    client.run()
    assert ends(client) == ["short", "output", "prompt", "long"]


def test_a_running_request_gives_way_to_one_of_a_higher_priority() -> None:
    client = Client(tiny_core(num_slots=1, scheduling="priority"))
    client.submit("running", [1, 2], params(20))
    for _ in range(4):
        client.core.step()
    client.submit("urgent", [3, 4], params(3), priority=5)
    outputs = client.run()
    assert ends(client) == ["urgent", "running"]
    assert outputs["running"].outputs[0].token_ids == alone([1, 2], params(20)).outputs[0].token_ids


@pytest.mark.parametrize("scheduling", ["fcfs", "shortest"])
def test_priorities_that_mean_nothing_are_refused(scheduling: str) -> None:
    client = Client(tiny_core(scheduling=scheduling))
    with pytest.raises(InvalidRequestError, match=f"priority: means nothing where scheduling is {scheduling}"):
        client.submit("a", [1], params(1), priority=1)


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValidationError, match="ageing_s: has no effect where scheduling is fcfs"):
        EngineConfig(scheduling="fcfs", ageing_s=1.0)
    assert EngineConfig(scheduling="fair", ageing_s=1.0).ageing_s == 1.0
    with pytest.raises(ValidationError, match="scheduling"):
        EngineConfig.model_validate({"scheduling": "lifo"})
    assert EngineConfig.model_validate({"scheduling_policy": "priority"}).scheduling == "priority"
