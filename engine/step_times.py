"""``StepTimes``: how long the parts of a step took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step, or of many.

    Attributes:
        draft_s: the drafter, on the device.
        verify_s: the target's forward pass, on the device.
        sample_s: sampling and acceptance, on the device.
        host_s: planning, launching and reading the step, on the host; where steps run ahead, at the same time.
    """

    draft_s: float = 0.0
    verify_s: float = 0.0
    sample_s: float = 0.0
    host_s: float = 0.0

    def __add__(self, other: StepTimes) -> StepTimes:
        return StepTimes(
            self.draft_s + other.draft_s,
            self.verify_s + other.verify_s,
            self.sample_s + other.sample_s,
            self.host_s + other.host_s,
        )


NO_TIME = StepTimes()
