"""Engines that hang: a step that never ends, in one replica or in all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from draftline.engine.protocol import EngineClient
from draftline.engine.server.hang_watch import HangWatch
from draftline.engine.stats import EngineStats


@dataclass
class Replicas:
    """What a watch sees of an engine."""

    steps: list[int] = field(default_factory=lambda: [0, 0])
    has_work: list[bool] = field(default_factory=lambda: [False, False])
    running: list[bool] = field(default_factory=lambda: [True, True])

    def stats_by_replica(self) -> list[EngineStats]:
        return [EngineStats(0, 0, 0, 0, 0, steps, 0, 0, 0, 0) for steps in self.steps]

    def replicas_with_work(self) -> list[bool]:
        return self.has_work

    def replicas_running(self) -> list[bool]:
        return self.running


class Watched:
    """Replicas that are watched in every second of their own time, with a timeout of ten seconds."""

    def __init__(self) -> None:
        self.replicas = Replicas()
        self._now = 0.0
        self._watch = HangWatch(cast(EngineClient, self.replicas), 10.0, lambda: self._now)

    def after(self, seconds: int) -> bool:
        """Whether it hangs that many seconds later."""
        for _ in range(seconds):
            self._now += 1
            hangs = self._watch.hangs()
        return hangs


def test_an_engine_without_requests_does_not_hang() -> None:
    watched = Watched()
    assert not watched.after(100)
    watched.replicas.has_work = [True, True]
    assert not watched.after(9), "the time without requests does not count"


def test_an_engine_hangs_until_its_next_step() -> None:
    watched = Watched()
    watched.replicas.has_work = [True, True]
    for _ in range(5):
        assert not watched.after(5)
        watched.replicas.steps = [steps + 1 for steps in watched.replicas.steps]
    assert not watched.after(10)
    assert watched.after(1)
    watched.replicas.steps[1] += 1
    assert not watched.after(1), "one replica goes on"
    assert watched.after(10)


def test_all_replicas_that_have_not_ended_must_hang() -> None:
    watched = Watched()
    watched.replicas.has_work = [True, False]
    assert not watched.after(100), "the other takes requests"
    watched.replicas.running = [True, False]
    assert watched.after(1)
    watched.replicas.running = [False, False]
    assert not watched.after(1), "it has ended"
