"""Outputs that have ended, but whose clients do not know it yet: a step is told once the next one is launched."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tiny import alone, tiny_core

from draftline import SamplingParams
from draftline.engine.core import Core
from draftline.engine.errors import EngineStoppedError
from draftline.engine.outputs import Delta, Failed, Finished, FinishReason, Update
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.request import RequestBuilder
from draftline.engine.streaming.output_state import OutputState


class Clock:
    now = 1.0

    def __call__(self) -> float:
        return self.now


class Served:
    """Some requests of an engine that launches steps ahead, and what their clients know."""

    def __init__(self, num_slots: int = 8) -> None:
        self.clock = Clock()
        self.core: Core = tiny_core(steps_ahead=1, num_slots=num_slots, clock=self.clock)
        self.told: list[tuple[str, Update]] = []
        self._builder = RequestBuilder(self.core.info, self.core.tokenizer, 0.0, self.core.compiler)

    def submit(self, name: str, max_tokens: int, timeout_s: float | None = None, n: int = 1) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0 if n == 1 else 1, n=n)
        wanted = GenerateRequest((5, 6, 7), sampling, timeout_s=timeout_s)
        self.core.add(self._builder.build(name, wanted, self.told.extend, self.clock.now))

    def kinds(self, name: str) -> list[type[Update]]:
        return [type(update) for of, update in self.told if of == name]

    def until_ended(self, name: str) -> None:
        """Step until an output has ended, and its client does not know it."""
        [output] = [output for output in self.core._live.outputs.values() if output.sequence.request_id == name]
        while not output.has_ended:
            self.core.step()
        assert self.core.is_live(name)
        assert Finished not in self.kinds(name)

    def until_first_of_two_ended(self, timeout_s: float | None = None) -> None:
        """Step until the first output of the request ``both`` has ended by a stop token, and its client does not know.

        The second one goes on.
        """
        drawn = SamplingParams(max_tokens=20, n=2, seed=3, ignore_eos=True)
        tokens = alone((5, 6, 7), drawn).outputs
        [stop] = set(tokens[0].token_ids[3:4]) - set(tokens[0].token_ids[:3]) - set(tokens[1].token_ids[:6])
        sampling = drawn.model_copy(update={"stop_token_ids": (stop,)})
        wanted = GenerateRequest((5, 6, 7), sampling, timeout_s=timeout_s)
        self.core.add(self._builder.build("both", wanted, self.told.extend, self.clock.now))
        first, second = self.core._live.outputs.values()
        while not first.has_ended:
            self.core.step()
        assert not second.has_ended
        assert Finished not in self.kinds("both")

    def finish(self) -> Sequence[str]:
        """Step until nothing is left. Returns the requests in the order of their ends."""
        while self.core.has_work:
            self.core.step()
            self.core.check()
        return [name for name, update in self.told if update.ends_output]


def test_what_an_output_held_is_free_before_its_client_knows() -> None:
    served = Served(num_slots=2)
    served.submit("long", 20)
    served.submit("first", 3)
    served.submit("second", 3)
    served.until_ended("first")
    assert (served.core.stats().running, served.core.stats().waiting) == (1, 1)
    served.core.step()
    assert (served.core.stats().running, served.core.stats().waiting) == (2, 0)
    assert served.kinds("first") == [Delta, Delta, Delta, Finished]
    assert served.finish() == ["first", "second", "long"]


def test_a_deadline_that_passes_before_the_client_knows_changes_nothing() -> None:
    served = Served()
    served.submit("long", 20)
    served.submit("short", 2, timeout_s=10.0)
    served.until_ended("short")
    served.clock.now += 11.0
    assert served.finish() == ["short", "long"]
    assert served.kinds("short") == [Delta, Delta, Finished]


def test_a_deadline_follows_what_was_read_before_it() -> None:
    served = Served()
    served.submit("late", 20, timeout_s=10.0)
    for _ in range(4):
        served.core.step()
    served.clock.now += 11.0
    assert served.finish() == ["late"]
    # Four steps are launched, and the fourth one's launch tells of the second. The third one's is told with the end.
    assert served.kinds("late") == [Delta, Delta, Delta, Failed]


def test_a_cancel_follows_what_was_read_before_it() -> None:
    served = Served()
    served.submit("long", 20)
    for _ in range(4):
        served.core.step()
    served.core.cancel("long")
    assert served.finish() == ["long"]
    assert served.kinds("long")[-1] is Finished
    assert served.kinds("long").count(Finished) == 1
    tokens = [token for _, update in served.told if isinstance(update, Delta) for token in update.token_ids]
    [end] = [update for _, update in served.told if isinstance(update, Finished)]
    assert end.usage.completion_tokens == len(tokens) > 0


def test_an_engine_that_stops_tells_what_it_has_read() -> None:
    served = Served()
    served.submit("long", 20)
    served.submit("short", 2)
    served.until_ended("short")
    served.core.tell()
    served.core.fail_all(EngineStoppedError("the engine stopped"))
    assert served.kinds("short") == [Delta, Delta, Finished]
    assert served.kinds("long")[-1] is Failed


def test_a_cancel_of_two_outputs_one_of_which_has_ended_already() -> None:
    served = Served()
    served.until_first_of_two_ended()
    served.core.cancel("both")
    served.finish()
    ends = [update for _, update in served.told if isinstance(update, Finished)]
    assert [(end.index, end.finish_reason) for end in ends] == [(0, FinishReason.STOP), (1, FinishReason.CANCELLED)]
    assert not served.core._live.outputs


def test_a_deadline_of_two_outputs_one_of_which_has_ended_already() -> None:
    served = Served()
    served.until_first_of_two_ended(timeout_s=10.0)
    served.clock.now += 11.0
    served.finish()
    ends = [update for _, update in served.told if update.ends_output]
    assert [type(end) for end in ends] == [Finished, Failed]
    assert not served.core._live.outputs


def test_the_usage_of_an_output_that_ends_while_another_one_of_its_request_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served()
    served.submit("both", 3, n=2)
    first, second = served.core._live.outputs.values()
    keep = OutputState.keep

    def failing(output: OutputState, tokens: tuple[int, ...]) -> tuple[int, ...]:
        if output is second and len(output.sequence.tokens) == first.sequence.max_len - 1:
            raise OSError("the parser broke")
        return keep(output, tokens)

    monkeypatch.setattr(OutputState, "keep", failing)
    served.finish()
    [end] = [update for _, update in served.told if isinstance(update, Finished)]
    assert (end.index, end.usage.completion_tokens) == (0, 3)
    assert served.kinds("both")[-1] is Failed
