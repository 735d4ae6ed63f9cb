"""``StepTimer``: how long the parts of a step take on the device that runs it. ``EventPool``: CUDA events for reuse."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Protocol

import torch
from typing_extensions import override

from draftline.engine.stats import StepTimes


class EventPool:
    """CUDA events that are free for reuse, for one thread and its stream. To create one costs the host almost as much as to record it."""

    def __init__(self, *, timing: bool = False) -> None:
        """An empty pool. With ``timing``, events measure the time between them."""
        self._timing = timing
        self._unused: list[torch.cuda.Event] = []
        self._stream: torch.cuda.Stream | None = None

    def record(self) -> torch.cuda.Event:
        """Record an event in the stream that is the thread's at the first call."""
        if self._stream is None:
            self._stream = torch.cuda.current_stream()  # to look it up takes as long as to record
        event = self._unused.pop() if self._unused else torch.cuda.Event(enable_timing=self._timing)
        event.record(self._stream)
        return event

    def give_back(self, events: Iterable[torch.cuda.Event]) -> None:
        """Return events that the device has passed. The caller must not read them again."""
        self._unused += events


class Timer(Protocol):
    """Takes four marks in a step: before drafting, before the forward pass, before sampling, and at the end."""

    def mark(self) -> None:
        """The next part begins here, in the device's order."""
        ...

    def times(self, host_s: float) -> StepTimes | None:
        """The parts' times once the device has passed the last mark, with ``host_s`` added; None if none were taken."""
        ...


class NoTimer(Timer):
    """Steps without drafts are not timed: only the choice of draft lengths needs the times."""

    @override
    def mark(self) -> None:
        return

    @override
    def times(self, host_s: float) -> StepTimes | None:
        return None


NO_TIMER = NoTimer()


class StepTimer(Timer):
    """Marks by CUDA events on a GPU, by the clock on a CPU."""

    def __init__(self, device: torch.device, pool: EventPool) -> None:
        """No mark yet. The events of ``pool`` measure times."""
        self._on_gpu = device.type == "cuda"
        self._pool = pool
        self._events: list[torch.cuda.Event] = []
        self._moments: list[float] = []

    @override
    def mark(self) -> None:
        if self._on_gpu:
            self._events.append(self._pool.record())
        else:
            self._moments.append(time.perf_counter())

    @override
    def times(self, host_s: float) -> StepTimes | None:
        moments, events = self._moments, self._events
        if self._on_gpu:
            moments = [float(events[0].elapsed_time(event)) / 1000 for event in events]
            self._pool.give_back(events)
        draft, verify, sample = (end - start for start, end in pairwise(moments))
        return StepTimes(draft, verify, sample, host_s)
