"""What an engine counts: its state and totals, drafts by position, how long the parts of a step take.

Plain numbers, cheap enough for every step; what reads them (metrics, reports) lies elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

STEP_SECONDS = (0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Bounds for the time between two tokens."""


@dataclass(frozen=True, slots=True)
class HistogramCounts:
    """What a histogram holds: ``counts[i]`` observations up to ``bounds[i]``, the last those above all bounds."""

    bounds: tuple[float, ...] = STEP_SECONDS
    counts: tuple[int, ...] = (0,) * (len(STEP_SECONDS) + 1)
    total: float = 0.0


class Histogram:
    """Observations with weights. One thread adds; others may ask for the counts."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds`` ascend; above the last there is one more bucket."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float, weight: int) -> None:
        """Count ``value`` so many times."""
        self._counts[bisect_left(self._bounds, value)] += weight
        self._total += value * weight

    def counts(self) -> HistogramCounts:
        """What was counted up to now."""
        return HistogramCounts(self._bounds, tuple(self._counts), self._total)


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


@dataclass(frozen=True, slots=True)
class DrafterStats:
    """What a drafter has done since the start.

    Attributes:
        name: which.
        steps: how often a sequence was drafted for.
        drafted_by_position: how often there was a first, second, … draft.
        accepted_by_position: how often it was accepted.
        times: of the steps with drafts, all together.
    """

    name: str
    steps: int = 0
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    times: StepTimes = NO_TIME

    @property
    def drafted(self) -> int:
        """All drafts."""
        return sum(self.drafted_by_position)

    @property
    def accepted(self) -> int:
        """All that were accepted."""
        return sum(self.accepted_by_position)

    @property
    def acceptance_length(self) -> float:
        """Tokens that a step with drafts decides for a sequence, on average; 1 where there was none."""
        return 1 + self.accepted / self.steps if self.steps else 1.0


NO_DRAFTS = DrafterStats("none")


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's state at one moment, and its counts since the start.

    Attributes:
        running: sequences with a slot.
        waiting: sequences without one, the preempted among them.
        free_blocks: cache blocks whose contents mean nothing.
        cached_blocks: blocks that no sequence holds but a prefix hit can use.
        total_blocks: all blocks.
        steps: steps that were read.
        generated_tokens: tokens that outputs kept.
        preemptions: how often a sequence lost its place.
        prefix_hit_tokens: prompt tokens that were found in the cache.
        prefix_query_tokens: prompt tokens of sequences that were admitted.
        drafter: what its drafter has done.
        queued_requests: requests that have not run yet.
        queued_tokens: their prompts' tokens.
        token_gaps: seconds between two steps, counted once for each sequence that went on from the one to the other.
    """

    running: int
    waiting: int
    free_blocks: int
    cached_blocks: int
    total_blocks: int
    steps: int
    generated_tokens: int
    preemptions: int
    prefix_hit_tokens: int
    prefix_query_tokens: int
    drafter: DrafterStats = NO_DRAFTS
    queued_requests: int = 0
    queued_tokens: int = 0
    token_gaps: HistogramCounts = field(default_factory=HistogramCounts)

    @property
    def drafted_tokens(self) -> int:
        """Tokens that were drafted and verified."""
        return self.drafter.drafted

    @property
    def accepted_tokens(self) -> int:
        """Those of them that were accepted."""
        return self.drafter.accepted


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
