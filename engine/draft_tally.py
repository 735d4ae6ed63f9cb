"""``DraftTally``: what became of drafts, counted over outputs of one drafter."""

from __future__ import annotations

from draftline.engine.client import DrafterStats
from draftline.engine.step_times import StepTimes


class DraftTally:
    """Counts drafts by position. One thread counts; any may ask for `stats`."""

    def __init__(self, name: str) -> None:
        """Nothing was drafted yet; ``name`` is the drafter's."""
        self._name = name
        self._steps = 0
        self._drafted: list[int] = []
        self._accepted: list[int] = []
        self._times = StepTimes()

    def count(self, drafted: int, accepted: int) -> None:
        """A sequence had ``drafted`` drafts in a step, of which the first ``accepted`` were right."""
        self._steps += 1
        lacking = drafted - len(self._drafted)
        if lacking > 0:
            self._drafted += [0] * lacking
            self._accepted += [0] * lacking
        for position in range(drafted):
            self._drafted[position] += 1
        for position in range(accepted):
            self._accepted[position] += 1

    def took(self, times: StepTimes) -> None:
        """A step with drafts took so long."""
        self._times += times

    def stats(self) -> DrafterStats:
        """All counts until now."""
        return DrafterStats(self._name, self._steps, tuple(self._drafted), tuple(self._accepted), self._times)
