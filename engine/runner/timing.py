"""``StepTimers``: how long the parts of a step take on the device that runs it.

``EventPool``: CUDA events for reuse.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from typing_extensions import override

from draftline.engine.stats import StepTimes

_TIMED_EVERY = 8
"""Four events take a GPU some 16 µs, of a step of a few hundred."""

_Parts = tuple[float, float, float]
"""Seconds of drafting, of the forward pass, and of sampling."""


class EventPool:
    """CUDA events that are free for reuse, for one thread and its stream.

    To create one costs the host almost as much as to record it.
    """

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


class _Unmarked(Timer):
    """Takes no marks: the step counts as another one, or is not timed."""

    def __init__(self, parts: _Parts | None) -> None:
        self._parts = parts

    @override
    def mark(self) -> None:
        return

    @override
    def times(self, host_s: float) -> StepTimes | None:
        return None if self._parts is None else StepTimes(*self._parts, host_s)


NO_TIMER: Timer = _Unmarked(None)
"""Steps without drafts are not timed."""


class _ClockTimer(Timer):
    """Marks by the clock: a CPU has run what it was given."""

    def __init__(self) -> None:
        self._moments: list[float] = []

    @override
    def mark(self) -> None:
        self._moments.append(time.perf_counter())

    @override
    def times(self, host_s: float) -> StepTimes | None:
        return StepTimes(*_between(self._moments), host_s)


@dataclass(slots=True)
class _Kind:
    """Steps that take about the same time.

    Attributes:
        begun: how many have begun.
        parts: the parts' times of the last one that was timed; None before.
    """

    begun: int = 0
    parts: _Parts | None = None


class _EventTimer(Timer):
    """Marks by CUDA events."""

    def __init__(self, pool: EventPool, kind: _Kind) -> None:
        """No mark yet. ``kind`` receives the times."""
        self._pool = pool
        self._kind = kind
        self._events: list[torch.cuda.Event] = []

    @override
    def mark(self) -> None:
        self._events.append(self._pool.record())

    @override
    def times(self, host_s: float) -> StepTimes | None:
        events = self._events
        parts = self._kind.parts = _between([events[0].elapsed_time(event) / 1000 for event in events])
        self._pool.give_back(events)
        return StepTimes(*parts, host_s)


class StepTimers:
    """The timers of steps with drafts.

    On a GPU, one step in eight of a kind is timed, and the others count as the last one timed.
    """

    def __init__(self, device: torch.device) -> None:
        """Create the timers of steps on ``device``."""
        self._on_gpu = device.type == "cuda"
        self._pool = EventPool(timing=True)
        self._kinds: dict[Hashable, _Kind] = {}

    def timer(self, kind: Hashable | None) -> Timer:
        """A step's timer, without marks.

        ``kind`` is equal for steps that take about the same time; None if no others do.
        """
        if not self._on_gpu:
            return _ClockTimer()
        known = _Kind() if kind is None else self._kinds.setdefault(kind, _Kind())
        timed = known.begun % _TIMED_EVERY == 0
        known.begun += 1
        return _EventTimer(self._pool, known) if timed or known.parts is None else _Unmarked(known.parts)


def _between(marks: Iterable[float]) -> _Parts:
    draft, verify, sample = (end - start for start, end in pairwise(marks))
    return draft, verify, sample
