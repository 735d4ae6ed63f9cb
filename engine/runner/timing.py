"""``StepTimer``: how long the parts of a step take on the device that runs it."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Protocol

import torch
from typing_extensions import override

from draftline.engine.stats import StepTimes


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

    def __init__(self, device: torch.device) -> None:
        """No mark yet."""
        self._on_gpu = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._moments: list[float] = []

    @override
    def mark(self) -> None:
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._moments.append(time.perf_counter())

    @override
    def times(self, host_s: float) -> StepTimes | None:
        moments, events = self._moments, self._events
        if self._on_gpu:
            moments = [float(events[0].elapsed_time(event)) / 1000 for event in events]
        draft, verify, sample = (end - start for start, end in pairwise(moments))
        return StepTimes(draft, verify, sample, host_s)
