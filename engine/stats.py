"""Statistics that an engine keeps: step times, drafts by position, token gaps, use of the device, its state as a whole.

They are plain numbers, cheap enough for every step. Metrics and reports that read them are elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest

TOKEN_GAP_BOUNDS_S = (0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds, in seconds, of the buckets that count gaps between two tokens."""


@dataclass(frozen=True, slots=True)
class HistogramCounts:
    """A copy of a histogram.

    Attributes:
        bounds: upper bounds of the buckets, ascending.
        counts: observations in each bucket, and last those above all bounds.
        total: the sum of all observations.
    """

    bounds: tuple[float, ...] = TOKEN_GAP_BOUNDS_S
    counts: tuple[int, ...] = (0,) * (len(TOKEN_GAP_BOUNDS_S) + 1)
    total: float = 0.0


class Histogram:
    """Observations with weights. One thread adds them; any thread may call `counts`."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds`` are the buckets' upper bounds, ascending. One more bucket counts what is above the last."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float, weight: int) -> None:
        """Count ``value`` as ``weight`` observations."""
        self._counts[bisect_left(self._bounds, value)] += weight
        self._total += value * weight

    def counts(self) -> HistogramCounts:
        """Return a copy."""
        return HistogramCounts(self._bounds, tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step, or of many.

    Attributes:
        draft_s: the drafter, on the device.
        verify_s: the target model's forward pass, on the device.
        sample_s: sampling and acceptance, on the device.
        host_s: planning, launching and reading the step, on the host. If steps are launched ahead, it overlaps with the
            device's time.
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
    """The counts of a drafter since the start.

    Attributes:
        name: the drafter's name.
        steps: how often a sequence had drafts in a step.
        drafted_by_position: how often there was a first, second, … draft.
        accepted_by_position: how often it was accepted.
        times: sum over the steps with drafts.
    """

    name: str
    steps: int = 0
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    times: StepTimes = NO_TIME

    @property
    def drafted(self) -> int:
        """The number of drafts."""
        return sum(self.drafted_by_position)

    @property
    def accepted(self) -> int:
        """The number of accepted drafts."""
        return sum(self.accepted_by_position)

    @property
    def acceptance_length(self) -> float:
        """Mean number of tokens that a step with drafts decides for a sequence; 1 if there was no such step."""
        return 1 + self.accepted / self.steps if self.steps else 1.0


NO_DRAFTS = DrafterStats("none")


# How much of a device's peak rates the steps reach, from the model's own counts. Model FLOPs utilisation (MFU) is
# arithmetic divided by what the device could have done in the same time (Chowdhery et al. 2022,
# https://arxiv.org/abs/2204.02311, appendix B); bandwidth utilisation is the same of memory traffic.


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """The rates that a device cannot exceed.

    Attributes:
        flops_per_s: dense matrix arithmetic, in the type of the weights' products.
        bytes_per_s: memory traffic.
    """

    flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class WorkCounts:
    """The work of the steps since the engine's start.

    Attributes:
        steps: steps whose results were read.
        seconds: their times together. A step that was launched ahead begins when the one before it ends.
        flops: their arithmetic; see `draftline.models.work`.
        num_bytes: their memory traffic.
    """

    steps: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    num_bytes: float = 0.0

    def __add__(self, other: WorkCounts) -> WorkCounts:
        return WorkCounts(
            self.steps + other.steps,
            self.seconds + other.seconds,
            self.flops + other.flops,
            self.num_bytes + other.num_bytes,
        )

    def __sub__(self, earlier: WorkCounts) -> WorkCounts:
        return WorkCounts(
            self.steps - earlier.steps,
            self.seconds - earlier.seconds,
            self.flops - earlier.flops,
            self.num_bytes - earlier.num_bytes,
        )


NO_WORK = WorkCounts()


@dataclass(frozen=True, slots=True)
class Utilization:
    """The engine's steps over some time.

    Attributes:
        steps: how many there were.
        step_s: their mean time in seconds; 0 without steps.
        mfu: the share of the device's arithmetic that they used; None where its peak is not known.
        bandwidth: the same of its memory traffic.
    """

    steps: int = 0
    step_s: float = 0.0
    mfu: float | None = None
    bandwidth: float | None = None

    @staticmethod
    def of(work: WorkCounts, peak: DevicePeak | None) -> Utilization:
        """The use of a device with this peak by these steps."""
        if not work.steps or work.seconds <= 0:
            return Utilization(work.steps)
        step_s = work.seconds / work.steps
        if peak is None:
            return Utilization(work.steps, step_s)
        return Utilization(
            work.steps,
            step_s,
            work.flops / work.seconds / peak.flops_per_s,
            work.num_bytes / work.seconds / peak.bytes_per_s,
        )


class WorkMeter:
    """Adds up the work of steps. One thread adds; any thread may read ``counts``.

    Attributes:
        counts: of all steps so far.
        peak: the device's peak rates, if they are known.
    """

    def __init__(self, peak: DevicePeak | None = None) -> None:
        """No step so far."""
        self.peak = peak
        self.counts = NO_WORK

    def add(self, seconds: float, flops: float, num_bytes: float) -> None:
        """Add one step."""
        counts = self.counts
        self.counts = WorkCounts(
            counts.steps + 1, counts.seconds + seconds, counts.flops + flops, counts.num_bytes + num_bytes
        )

    def since(self, earlier: WorkCounts) -> Utilization:
        """The use of the device since ``earlier``."""
        return Utilization.of(self.counts - earlier, self.peak)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory that an engine has taken on its device, in bytes.

    Attributes:
        weights: of the model and the draft model.
        cache: keys and values, the draft model's included.
        activations: the most that the largest step takes besides; 0 on a CPU, where it is not measured.
        graphs: taken while the start captured the largest CUDA graphs, whose memory the others share; 0 without graphs.
    """

    weights: int = 0
    cache: int = 0
    activations: int = 0
    graphs: int = 0


NO_MEMORY = MemoryUse()


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's state at one moment, and its counts since the start.

    Attributes:
        running: sequences with a slot.
        waiting: sequences without a slot, preempted ones included.
        free_blocks: cache blocks whose contents mean nothing.
        cached_blocks: blocks that no sequence holds, but that the prefix tree knows.
        total_blocks: all blocks.
        steps: steps whose results were read.
        generated_tokens: tokens of all outputs.
        failed_outputs: outputs that an error or a limit of their own has ended, such as their constraint's.
        preemptions: how often a running sequence was preempted.
        prefix_hit_tokens: prompt tokens found in the cache at first admissions.
        prefix_query_tokens: prompt tokens of first admissions.
        drafter: the counts of the drafter.
        queued_requests: requests that have not run yet.
        queued_tokens: tokens of their prompts.
        token_gaps: seconds between two steps, counted once for each sequence that decodes in the second.
        work: the steps' time, arithmetic and memory traffic.
        kernels_compiling: kernels that few requests need, which other processes compile after a machine's first start.
            Steps may take longer meanwhile.
        graphs_to_capture: CUDA graphs of common steps, captured while the engine has no work or at their first use.
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
    failed_outputs: int = 0
    work: WorkCounts = NO_WORK
    kernels_compiling: int = 0
    graphs_to_capture: int = 0

    @property
    def getting_ready(self) -> bool:
        """Whether steps may still take longer than they will."""
        idle = not (self.running or self.waiting or self.queued_requests)
        return bool(self.kernels_compiling or (idle and self.graphs_to_capture))

    @property
    def drafted_tokens(self) -> int:
        """The number of drafts."""
        return self.drafter.drafted

    @property
    def accepted_tokens(self) -> int:
        """The number of accepted drafts."""
        return self.drafter.accepted

    def ended(self) -> EngineStats:
        """The state once the engine has ended: its counts stay, and nothing else is left."""
        return replace(
            self,
            running=0,
            waiting=0,
            queued_requests=0,
            queued_tokens=0,
            free_blocks=0,
            cached_blocks=0,
            total_blocks=0,
            kernels_compiling=0,
            graphs_to_capture=0,
        )


def total(parts: Sequence[EngineStats]) -> EngineStats:
    """The sum of the states of several engines of one kind, at least one."""
    if len(parts) == 1:
        return parts[0]
    summed = {
        field.name: sum(getattr(part, field.name) for part in parts)
        for field in fields(EngineStats)
        if field.name not in ("drafter", "token_gaps", "work")
    }
    drafters, gaps = [part.drafter for part in parts], [part.token_gaps for part in parts]
    drafter = DrafterStats(
        drafters[0].name,
        sum(each.steps for each in drafters),
        _sum_by_position([each.drafted_by_position for each in drafters]),
        _sum_by_position([each.accepted_by_position for each in drafters]),
        sum((each.times for each in drafters), NO_TIME),
    )
    counts = _sum_by_position([each.counts for each in gaps])
    return EngineStats(
        **summed,
        drafter=drafter,
        work=sum((part.work for part in parts), NO_WORK),
        token_gaps=HistogramCounts(gaps[0].bounds, counts, sum(each.total for each in gaps)),
    )


def _sum_by_position(parts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*parts, fillvalue=0)))
