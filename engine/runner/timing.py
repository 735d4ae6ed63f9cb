"""``StepClock``: when a step and its parts begin and end, by the clock of the device that runs them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from draftline.engine.runner.transfer import to_host
from draftline.engine.stats import StepTimes
from draftline.kernels.ops import Ops

DRAFTS, FORWARD, SAMPLING, END = range(4)
"""The moments of a step: the beginnings of its parts, and its end."""

NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class StepClock:
    """Notes moments in the device's order, as a part of a graph too, where an event would cost the host a call.

    Attributes:
        ops: the device's operations.
        moments: [4] int64 on the device, those of the step that runs, in nanoseconds.
    """

    ops: Ops
    moments: Tensor

    @staticmethod
    def of(ops: Ops, device: torch.device) -> StepClock:
        """A clock of ``device``."""
        return StepClock(ops, torch.zeros(END + 1, dtype=torch.int64, device=device))

    def note(self, moment: int) -> None:
        """This moment is when the device has run all that was launched before."""
        self.ops.note_time(self.moments, moment)

    def read(self) -> Tensor:
        """The moments so far, on the host once an `Arrival` after this tells so."""
        return to_host(self.moments.clone())


def step_times(moments: Tensor, host_s: float) -> StepTimes:
    """How long a step's parts took, from its moments on the host."""
    draft, verify, sample = [(end - begin) / NANOSECONDS for begin, end in pairwise(moments.tolist())]
    return StepTimes(draft, verify, sample, host_s)


class StepDurations:
    """How long steps take, one after the other.

    A step that was launched ahead begins on the device when the one before it ends. The device's clock tells best when
    that was: the host often looks late, and the next step would seem short.
    """

    def __init__(self) -> None:
        """No step has been read."""
        self._arrived = 0.0  # when the host saw the end of the last step
        self._ended: int | None = None  # when it ended

    def of(self, started: float, arrived: float, ended: int | None, *, captured: bool = False) -> float:
        """The seconds of a step, read after those before it.

        Args:
            started: when its launch began, without its captures, by the host's clock in seconds.
            arrived: when the host saw its end.
            ended: when it ended, by the device's clock in nanoseconds; None if the device has not told.
            captured: whether its launch captured graphs, for which the device may have waited.
        """
        is_ahead = started < self._arrived
        seconds = arrived - max(started, self._arrived)
        if is_ahead and not captured and ended is not None and self._ended is not None:
            seconds = (ended - self._ended) / NANOSECONDS
        self._arrived, self._ended = arrived, ended
        return seconds
