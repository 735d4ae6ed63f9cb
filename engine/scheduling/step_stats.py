"""``StepStats``: what an engine's steps have done since its start, as `EngineStats` reports it."""

from __future__ import annotations

from draftline.engine.protocol import EngineInfo
from draftline.engine.request.backlog import Backlog
from draftline.engine.request.sequence import Row
from draftline.engine.scheduling.draft_tally import DraftTally
from draftline.engine.scheduling.scheduler import SchedulerStats
from draftline.engine.stats import TOKEN_GAP_BOUNDS_S, EngineStats, Histogram, StepTimes, WorkMeter
from draftline.models.work import ModelWork


class StepStats:
    """Counts steps once their results are read. One thread uses it.

    Attributes:
        meter: adds up the steps' time, arithmetic and memory traffic.
        drafts: counts drafts.
        generated_tokens: tokens of all outputs.
    """

    def __init__(self, info: EngineInfo, work: ModelWork, now: float) -> None:
        """No step so far.

        Args:
            info: the engine's drafter, and the peak rates of its device.
            work: counts a step's arithmetic and memory traffic.
            now: the time in seconds.
        """
        self.meter = WorkMeter(info.peak)
        self.drafts = DraftTally(info.drafter)
        self.generated_tokens = 0
        self._work = work
        self._steps = 0
        self._token_gaps = Histogram(TOKEN_GAP_BOUNDS_S)
        self._read_at = now

    def add(
        self, rows: tuple[Row, ...], decoding: int, logits: int, seconds: float, now: float, times: StepTimes | None
    ) -> None:
        """Add a step.

        Args:
            rows: its rows.
            decoding: how many of them are past their prompts.
            logits: the positions that got logits.
            seconds: how long it took.
            now: the time in seconds at which its results were read.
            times: of its parts, if it had drafts.
        """
        self._steps += 1
        self._token_gaps.add(now - self._read_at, decoding)
        self._read_at = now
        if times is not None:
            self.drafts.add_times(times)
        work = self._work.step([(row.start, row.count + row.drafts) for row in rows], logits)
        self.meter.add(seconds, *work)

    def of_engine(
        self,
        scheduler: SchedulerStats,
        backlog: Backlog,
        failed_outputs: int,
        kernels_compiling: int,
        graphs_to_capture: int,
    ) -> EngineStats:
        """The engine's state now.

        Args:
            scheduler: the scheduler's state.
            backlog: the requests that have not run yet.
            failed_outputs: see `EngineStats`.
            kernels_compiling: see `EngineStats`.
            graphs_to_capture: see `EngineStats`.
        """
        return EngineStats(
            running=scheduler.running,
            waiting=scheduler.waiting,
            queued_requests=len(backlog),
            queued_tokens=backlog.tokens,
            token_gaps=self._token_gaps.counts(),
            free_blocks=scheduler.free_blocks,
            cached_blocks=scheduler.cached_blocks,
            total_blocks=scheduler.total_blocks,
            steps=self._steps,
            generated_tokens=self.generated_tokens,
            failed_outputs=failed_outputs,
            drafter=self.drafts.stats(),
            preemptions=scheduler.preemptions,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            prefix_query_tokens=scheduler.prefix_query_tokens,
            work=self.meter.counts,
            kernels_compiling=kernels_compiling,
            graphs_to_capture=graphs_to_capture,
        )
