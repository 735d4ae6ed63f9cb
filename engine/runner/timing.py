"""``StepClock``: when the parts of a step with drafts begin and end, by the clock of the device that runs them."""

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
    draft, verify, sample = [(end - begin) / 1e9 for begin, end in pairwise(moments.tolist())]
    return StepTimes(draft, verify, sample, host_s)
