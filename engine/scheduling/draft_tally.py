"""``DraftTally``: counts drafts by position, and adds up the times of their steps."""

from __future__ import annotations

from itertools import accumulate

from draftline.engine.stats import DrafterStats, StepTimes


class DraftTally:
    """Counts drafts by position. One thread counts; any thread may call `stats`."""

    def __init__(self, name: str) -> None:
        """Create a tally without drafts. ``name`` is the drafter's name."""
        self._name = name
        self._steps = 0
        # How often there were so many drafts, and so many accepted ones: one addition each, however many there were.
        self._drafted = [0]
        self._accepted = [0]
        # Added in place: a `StepTimes` an addition takes the host several times as long.
        self._draft_s = self._verify_s = self._sample_s = self._host_s = 0.0

    def count(self, drafted: int, accepted: int) -> None:
        """Count a step of a sequence with ``drafted`` drafts, of which the first ``accepted`` were accepted."""
        lacking = drafted + 1 - len(self._drafted)
        if lacking > 0:
            self._drafted += [0] * lacking
            self._accepted += [0] * lacking
        self._steps += 1
        self._drafted[drafted] += 1
        self._accepted[accepted] += 1

    def add_times(self, times: StepTimes) -> None:
        """Add the times of a step with drafts."""
        self._draft_s += times.draft_s
        self._verify_s += times.verify_s
        self._sample_s += times.sample_s
        self._host_s += times.host_s

    def stats(self) -> DrafterStats:
        """Return a copy."""
        times = StepTimes(self._draft_s, self._verify_s, self._sample_s, self._host_s)
        return DrafterStats(self._name, self._steps, _by_position(self._drafted), _by_position(self._accepted), times)


def _by_position(counts: list[int]) -> tuple[int, ...]:
    """How often there was a first, second, … of things of which there were i ``counts[i]`` times."""
    return tuple(accumulate(reversed(counts[1:])))[::-1]
