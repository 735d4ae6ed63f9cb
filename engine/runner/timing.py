"""``Stopwatch``: how long the parts of a step take on the device that runs it."""

from __future__ import annotations

import time
from itertools import pairwise

import torch

from draftline.engine.stats import StepTimes


class Stopwatch:
    """Four marks: before the drafter, before the forward pass, before sampling, and at the end."""

    def __init__(self, device: torch.device) -> None:
        """No mark yet."""
        self._on_gpu = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._moments: list[float] = []

    def mark(self) -> None:
        """The next part begins here, in the order of the device."""
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._moments.append(time.perf_counter())

    def times(self, host_s: float) -> StepTimes:
        """The parts' times, once the device has passed the last mark; ``host_s`` is added to them."""
        moments, events = self._moments, self._events
        if self._on_gpu:
            moments = [float(events[0].elapsed_time(event)) / 1000 for event in events]
        draft, verify, sample = (end - start for start, end in pairwise(moments))
        return StepTimes(draft, verify, sample, host_s)
