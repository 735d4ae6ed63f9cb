from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from draftline.engine.runner import timing
from draftline.engine.runner.timing import StepTimers
from draftline.engine.stats import StepTimes


class FakeEvent:
    """An event at a moment in milliseconds."""

    def __init__(self, at: float) -> None:
        self.at = at

    def elapsed_time(self, later: FakeEvent) -> float:
        return later.at - self.at


class FakePool:
    """Events of a device on which each part of the n-th timed step takes n, 2 n and 3 n milliseconds."""

    def __init__(self, *, timing: bool) -> None:
        assert timing
        self.recorded, self.returned, self.now = 0, 0, 0.0

    def record(self) -> FakeEvent:
        step, part = divmod(self.recorded, 4)
        self.now += (step + 1) * part
        self.recorded += 1
        return FakeEvent(self.now)

    def give_back(self, events: Iterable[FakeEvent]) -> None:
        self.returned += len(list(events))


def run(timers: StepTimers, kind: str | None) -> StepTimes:
    timer = timers.timer(kind)
    for _ in range(4):
        timer.mark()
    times = timer.times(host_s=0.5)
    assert times is not None
    return times


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> StepTimers:
    monkeypatch.setattr(timing, "EventPool", FakePool)
    return StepTimers(torch.device("cuda"))


def parts(times: StepTimes) -> list[float]:
    assert times.host_s == 0.5
    return [round(1000 * seconds) for seconds in (times.draft_s, times.verify_s, times.sample_s)]


def test_one_step_in_eight_of_a_kind_is_timed(timers: StepTimers) -> None:
    taken = [parts(run(timers, "a")) for _ in range(17)]
    assert taken == [[1, 2, 3]] * 8 + [[2, 4, 6]] * 8 + [[3, 6, 9]]
    assert timers._pool.recorded == timers._pool.returned == 3 * 4  # type: ignore[attr-defined]
    assert parts(run(timers, "b")) == [4, 8, 12], "another kind has times of its own"
    assert parts(run(timers, "a")) == [3, 6, 9]


def test_steps_like_no_other_are_all_timed(timers: StepTimers) -> None:
    assert [parts(run(timers, None)) for _ in range(3)] == [[1, 2, 3], [2, 4, 6], [3, 6, 9]]


def test_steps_are_timed_until_one_of_their_kind_has_arrived(timers: StepTimers) -> None:
    first, second = timers.timer("a"), timers.timer("a")
    for timer in (first, second):
        for _ in range(4):
            timer.mark()
    assert [parts(timer.times(0.5)) for timer in (first, second)] == [[1, 2, 3], [2, 4, 6]]  # type: ignore[arg-type]
    assert parts(run(timers, "a")) == [2, 4, 6]


def test_every_step_on_a_cpu_is_timed() -> None:
    timers = StepTimers(torch.device("cpu"))
    taken = [run(timers, "a") for _ in range(3)]
    assert len({times.draft_s for times in taken}) > 1
