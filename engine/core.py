"""``Core``: requests in, one step at a time, updates out. One thread owns it. `Core.step` is where to begin to read.

A step may be launched before the last one's results are read. The next step finds the last one's tokens on the device,
so the device never waits for the host.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from draftline.engine.drafting.policy import DraftPolicy, Verified
from draftline.engine.errors import DeadlineExceededError, DraftlineError, StepFailedError
from draftline.engine.outputs import Failed, Update
from draftline.engine.protocol import EngineInfo, Sink
from draftline.engine.request.backlog import Backlog
from draftline.engine.request.deadlines import Deadlines
from draftline.engine.request.request import Request
from draftline.engine.request.sequence import Plan, Sequence
from draftline.engine.runner.launched_step import LaunchedStep, StepResults
from draftline.engine.runner.runner import Runner
from draftline.engine.runner.timing import StepDurations
from draftline.engine.scheduling.ordering import ORDERS
from draftline.engine.scheduling.scheduler import Scheduler
from draftline.engine.scheduling.step_budget import StepBudget
from draftline.engine.scheduling.step_log import StepLog
from draftline.engine.scheduling.step_stats import StepStats
from draftline.engine.stats import EngineStats, StepTimes
from draftline.engine.streaming.output_state import OutputState
from draftline.models.tokenization.tokenizer import Tokenizer
from draftline.models.work import ModelWork
from draftline.spec.drafter import DraftChunk
from draftline.structured.compiler import ConstraintCompiler

logger = logging.getLogger(__name__)


_Updates = list[tuple[OutputState, tuple[Update, ...]]]
"""A step's updates for the clients, by output."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step that was launched and not read yet, with its drafter's catching up.

    Planning and launching it took the host ``host_s`` seconds from ``started``.
    """

    number: int
    plan: Plan
    caught_up_tokens: int
    step: LaunchedStep
    started: float
    host_s: float


class Core:
    """Runs requests to their ends. One thread steps it; the methods that other threads may call say so.

    Attributes:
        info: the model and limits that callers see.
        tokenizer: the model's tokenizer.
        compiler: compiles requests' constraints, for callers; None if they cannot have any.
        journal: the changes of the prefix cache. Any thread may follow them.
        backlog: the requests that have not run yet. Other threads may read its counts.
        profiler: records its steps.
        now: the clock, in seconds. Any thread may read it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        tokenizer: Tokenizer,
        info: EngineInfo,
        policy: DraftPolicy,
        *,
        budget: StepBudget | None = None,
        steps_ahead: int = 0,
        compiler: ConstraintCompiler | None = None,
        work: ModelWork | None = None,
        step_log: StepLog | None = None,
        kernels_compiling: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """An idle core.

        Args:
            scheduler: plans its steps.
            runner: computes them.
            tokenizer: turns tokens into text.
            info: the model and limits that callers see.
            policy: chooses how many tokens each sequence drafts.
            budget: chooses how many tokens each step computes; the scheduler's maximum where None.
            steps_ahead: how many steps may be in flight while the next is launched.
            compiler: compiles requests' constraints. The core only keeps it for its callers.
            work: counts the work of its steps; None counts none.
            step_log: logs each step's plan and time; None logs none.
            kernels_compiling: how many kernels are compiled beside the steps.
            clock: gives seconds; steps are timed by it, and requests' ``submitted_at`` must be on it too.
        """
        self.info = info
        self.tokenizer = tokenizer
        self.compiler = compiler
        self.journal = scheduler.journal
        self._scheduler = scheduler
        self._runner = runner
        self.now = clock
        self._live: dict[str, Request] = {}
        self._outputs: dict[Sequence, OutputState] = {}  # of the live requests
        self._deadlines = Deadlines()
        self._queue_order = ORDERS[info.scheduling]()
        self._budget = budget
        self._stats = StepStats(info, work, clock())
        self._step_log = step_log
        self._kernels_compiling = kernels_compiling
        self.profiler = runner.profiler
        self.backlog = Backlog()
        self._policy = policy
        self._steps_ahead = steps_ahead
        self._in_flight: deque[_InFlight] = deque()
        self._launched = 0
        self._durations = StepDurations()
        self._let_others_run: Callable[[], object] = lambda: None

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished, or a step unread."""
        return bool(self._live or self._in_flight)

    def is_live(self, request_id: str) -> bool:
        """Whether a request is unfinished. Any thread may ask. It ends before its last update is delivered."""
        return request_id in self._live

    def add(self, request: Request) -> None:
        """Queue a request, whose id no live request has."""
        order = self._queue_order.order(
            request.caller, request.weight, request.head_start_s, request.max_tokens, request.submitted_at
        )
        self._live[request.request_id] = request
        self._deadlines.add(request)
        self.backlog.add(request)
        for sequence in request.sequences:
            sequence.order = order
            self._outputs[sequence] = OutputState(request, sequence, self.tokenizer, self.info, self._stats.meter)
            self._scheduler.add(sequence)

    def displace(self, request_id: str, error: DraftlineError) -> None:
        """End a request that has not run with ``error``, for the sake of another one. Others are ignored."""
        request = self._live.get(request_id)
        if request is not None and self.backlog.has(request_id):
            self._deliver(self._end_requests(request.sequences, error))

    def cancel(self, request_id: str) -> None:
        """End a request in the next step. Unknown ids are ignored."""
        request = self._live.get(request_id)
        if request is not None:
            for sequence in request.sequences:
                sequence.cancelled = True

    def step(self) -> None:
        """Plan and launch a step, read the oldest step in flight, and deliver its updates.

        A fault fails the requests of the step; the engine goes on with the others.

        Raises:
            DeviceLostError: the fault left no device to go on with.
        """
        started = self.now()
        updates = self._expire()
        # Which sequences run, with how many tokens and drafts, in which cache blocks.
        with self.profiler.part("plan"):
            self._policy.begin_step(self._scheduler.running)
            plan = self._scheduler.plan(self._policy.draft_len, self._step_tokens())
            catch_up = self._policy.catch_up(plan)
        for sequence in plan.cancelled:
            output = self._outputs[sequence]
            try:
                updates.append((output, output.cancel(self.now())))
            except Exception as error:  # noqa: BLE001 - it ends this request only
                updates += self._fail_output(sequence, error)
        # Launch this step first, then read an earlier one: the device computes while the host handles results.
        if plan.rows:
            updates += self._launch(plan, catch_up, started)
        self._let_others_run()
        if len(self._in_flight) > self._steps_ahead or (self._in_flight and not plan.rows):
            updates += self._read(self._in_flight.popleft())
        with self.profiler.part("deliver"):
            self._deliver(updates)
        if not self.has_work:
            self._let_others_run()

    def capture_next(self) -> bool:
        """Capture one of the CUDA graphs that steps will need, in some tens of milliseconds. False if none is left.

        For a core without work: a step captures what it lacks.

        Raises:
            RuntimeError: the device is lost.
        """
        return self._runner.captures.capture_next()

    def when_launched(self, call: Callable[[], object]) -> None:
        """Call ``call`` in each step once it is launched, and when there is no more work: then this thread only waits.

        Python runs one thread at a time. Threads that deliver updates begin here, so that they do not delay a launch.
        In a launch that takes long, they begin before.
        """
        self._let_others_run = call

    def check_alive(self) -> None:
        """Raise `DeviceLostError` if a part of the engine in another process is lost. Any thread may ask."""
        self._runner.check_alive()

    def when_lost(self, call: Callable[[], None]) -> None:
        """Call ``call`` from another thread once a process of the engine is lost; now if one is. Any thread may ask."""
        self._runner.when_lost(call)

    def close(self) -> None:
        """End the parts of the engine in other processes. Idempotent."""
        self._runner.close()

    def fail_all(self, error: Exception) -> None:
        """End every request with ``error``. Frees nothing: the engine has ended."""
        live, self._live, self._outputs = self._live, {}, {}
        for request_id, request in live.items():
            request.sink([(request_id, Failed(error))])

    def stats(self) -> EngineStats:
        """The engine's state now. Any thread may ask; the numbers may then be a step apart."""
        return self._stats.of_engine(
            self._scheduler.stats(), self.backlog, self._kernels_compiling(), self._runner.captures.left
        )

    def flush_prefix_cache(self) -> int:
        """Free the blocks that no sequence holds, and forget what drafters remember of earlier texts.

        Returns:
            How many blocks there were.
        """
        cached = self._scheduler.stats().cached_blocks
        self._scheduler.forget_prefixes()
        self._runner.forget_texts()
        return cached

    def check(self) -> None:
        """Assert the scheduler's and the cache's invariants (for tests and soaks)."""
        self._scheduler.check()

    def _expire(self) -> _Updates:
        """End the requests that are past their deadline, whether they run or wait."""
        updates: _Updates = []
        for request in self._deadlines.expired(self.now()):
            updates += self._end_requests(request.sequences, DeadlineExceededError())
        return updates

    def _step_tokens(self) -> int | None:
        """The token budget of the next step; None for the scheduler's maximum."""
        # It is for prompts: without one, the policy decides how many drafts are worth their time.
        if self._budget is None or not self._scheduler.has_prompts:
            return None
        # A sequence whose last token is in flight does not decode any more.
        running = self._scheduler.running
        return self._budget.tokens(sum([row.computed >= row.prompt_len and row.known < row.max_len for row in running]))

    def _launch(self, plan: Plan, catch_up: tuple[DraftChunk, ...], started: float) -> _Updates:
        now = self.now()
        for row in plan.admitted:
            self._outputs[row.sequence].mark_scheduled(now)
            self.backlog.start(row.sequence.request_id, now)
        self._launched += 1
        if self._step_log is not None:
            self._step_log.planned(self._launched, plan, self._scheduler.stats())
        try:
            earlier = [in_flight.step for in_flight in self._in_flight]
            step = self._runner.launch(plan, catch_up, earlier, self._let_others_run)
        except Exception as error:  # noqa: BLE001 - any fault fails this step's requests only
            return self._fail_step(plan, error)
        started += step.capture_s  # what follows is measured, and tells how long such steps take
        caught_up = sum([chunk.count for chunk in catch_up])
        self._in_flight.append(_InFlight(self._launched, plan, caught_up, step, started, self.now() - started))
        return []

    def _read(self, in_flight: _InFlight) -> _Updates:
        """Wait for a step, and commit the tokens that its outputs keep."""
        plan, step = in_flight.plan, in_flight.step
        try:
            with self.profiler.part("wait"):
                step.wait()
            arrived = self.now()
            results = step.results()
        except Exception as error:  # noqa: BLE001 - any fault fails this step's requests only
            return self._fail_step(plan, error)
        now = self.now()
        times = step.times(in_flight.host_s + self.now() - arrived)
        self._measure(in_flight, arrived, now, times)
        with self.profiler.part("results"):
            return self._take_results(plan, results, now, times)

    def _measure(self, in_flight: _InFlight, arrived: float, now: float, times: StepTimes | None) -> None:
        """Report a step's duration to the statistics, the draft policy, the queue order and the token budget."""
        plan, rows = in_flight.plan, in_flight.plan.rows
        seconds = self._durations.of(in_flight.started, arrived, in_flight.step.ended())
        decoding = sum([row.start >= row.sequence.prompt_len for row in rows])
        self._stats.add(rows, decoding, in_flight.step.logits, seconds, now, times)
        if self._step_log is not None:
            self._step_log.read(in_flight.number, len(rows), seconds, in_flight.host_s)
        self._policy.observe_step(plan, in_flight.caught_up_tokens, seconds)
        computed = sum([row.count for row in rows])
        self._queue_order.measure(computed, seconds)
        if self._budget is not None:
            self._budget.measure(decoding, computed - decoding, seconds)

    def _take_results(self, plan: Plan, results: StepResults, now: float, times: StepTimes | None) -> _Updates:
        """Check stops, detokenize and advance constraints. Each output keeps the tokens up to its end."""
        updates: _Updates = []
        kept_tokens: list[tuple[int, ...]] = []
        verified: list[Verified] = []
        for row, tokens, logprobs, prompt_logprobs in zip(plan.rows, *results, strict=True):
            if row.sequence.finished:
                kept_tokens.append(())  # it ended while the step was in flight
                continue
            if row.drafts:
                verified.append((row.sequence, row.drafts, len(tokens) - 1))
            output = self._outputs[row.sequence]
            try:
                kept, of_output = output.advance(row, tokens, logprobs, prompt_logprobs, now, times)
            except Exception as error:  # noqa: BLE001 - it ends this request only
                kept_tokens.append(())
                updates += self._fail_output(row.sequence, error)
                continue
            kept_tokens.append(kept)
            updates.append((output, of_output))
            if row.drafts:
                self._stats.drafts.count(row.drafts, len(kept) - 1)  # drafts after the end count as rejected
        if verified:
            self._policy.observe(verified)
        self._stats.generated_tokens += sum(map(len, kept_tokens))
        self._scheduler.commit(plan, kept_tokens)
        return updates

    def _fail_step(self, plan: Plan, error: Exception) -> _Updates:
        """End every request that has a row in the plan."""
        logger.error("a step failed, and with it its %d sequences", len(plan.rows), exc_info=error)
        self._runner.check_device()
        updates = self._fail_requests([row.sequence for row in plan.rows if not row.sequence.finished], error)
        self._scheduler.commit(plan, [()] * len(plan.rows))
        return updates

    def _fail_output(self, sequence: Sequence, error: Exception) -> _Updates:
        """End the request of an output because of an error or a limit of the output's own."""
        self._stats.failed_outputs += 1
        if isinstance(error, DraftlineError):
            logger.warning("request %s failed: %s", sequence.request_id, error)
            return self._end_requests([sequence], error)
        logger.error("request %s failed", sequence.request_id, exc_info=error)
        return self._fail_requests([sequence], error)

    def _fail_requests(self, sequences: Iterable[Sequence], error: Exception) -> _Updates:
        """End the requests that these sequences belong to because of a fault."""
        failure = StepFailedError()
        failure.__cause__ = error
        return self._end_requests(sequences, failure)

    def _end_requests(self, sequences: Iterable[Sequence], failure: DraftlineError) -> _Updates:
        """End the requests that these sequences belong to, which are live, with ``failure``."""
        failed = {sequence.request_id: sequence for sequence in sequences}
        for request_id in failed:
            for sequence in self._live[request_id].sequences:
                self._scheduler.finish(sequence)
        return [(self._outputs[sequence], (Failed(failure),)) for sequence in failed.values()]

    def _deliver(self, updates: _Updates) -> None:
        """Release the outputs that ended, forget their requests, and call each sink once with all of its updates."""
        by_sink: dict[Sink, list[tuple[str, Update]]] = defaultdict(list)
        for output, of_output in updates:
            for update in of_output:
                by_sink[output.request.sink].append((output.sequence.request_id, update))
                if update.ends_output:
                    self._release(output)
        for sink, pairs in by_sink.items():
            sink(pairs)

    def _release(self, output: OutputState) -> None:
        """Release an output, and forget its request if that was the last one running."""
        self._scheduler.finish(output.sequence)
        request = output.request
        if request.request_id in self._live and all(sequence.finished for sequence in request.sequences):
            del self._live[request.request_id]
            self.backlog.drop(request.request_id)
            self._deadlines.drop(request.request_id)
            for sequence in request.sequences:
                del self._outputs[sequence]
                self._policy.forget(sequence)
