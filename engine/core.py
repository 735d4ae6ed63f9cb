"""``Core``: requests in, one step at a time, updates out. One thread owns it. `Core.step` is where to begin to read.

A step may be launched before the last one's results are read. The next step finds the last one's tokens on the device,
so the device never waits for the host. What the next step does not need, such as texts, is made once it is launched.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from draftline.engine.drafting.policy import DraftPolicy, Verified
from draftline.engine.errors import DraftlineError
from draftline.engine.protocol import EngineInfo
from draftline.engine.request.request import Request
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.engine.runner.launched_step import LaunchedStep, Logprobs, StepResults
from draftline.engine.runner.runner import Runner
from draftline.engine.runner.timing import StepDurations
from draftline.engine.scheduling.ordering import ORDERS
from draftline.engine.scheduling.scheduler import Scheduler
from draftline.engine.scheduling.step_budget import StepBudget
from draftline.engine.scheduling.step_log import StepLog
from draftline.engine.scheduling.step_stats import StepStats
from draftline.engine.stats import EngineStats, StepTimes
from draftline.engine.streaming.live_requests import LiveRequests, OutputUpdates
from draftline.engine.streaming.output_state import OutputState
from draftline.models.tokenization.tokenizer import Tokenizer
from draftline.models.work import ModelWork
from draftline.spec.drafter import DraftChunk
from draftline.structured.compiler import ConstraintCompiler

logger = logging.getLogger(__name__)

_KeptRow = tuple[OutputState, Row, tuple[int, ...], Logprobs, Logprobs]
"""A row of a step that was read: the tokens that its output keeps, and their and the prompt's log-probabilities."""


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


@dataclass(frozen=True, slots=True)
class _ReadStep:
    """A step whose tokens are committed, and which neither its clients nor those who learn from it know yet.

    Attributes:
        in_flight: the step.
        seconds: how long it took.
        now: the time in seconds at which it was read.
        times: of its parts, if it had drafts.
        kept: the rows whose outputs go on, or have ended with it.
        verified: the sequences that had drafts.
        failed: the updates of the outputs that an error of their own has ended.
    """

    in_flight: _InFlight
    seconds: float
    now: float
    times: StepTimes | None
    kept: list[_KeptRow]
    verified: list[Verified]
    failed: OutputUpdates


class Core:
    """Runs requests to their ends. One thread steps it; the methods that other threads may call say so.

    Attributes:
        info: the model and limits that callers see.
        tokenizer: the model's tokenizer.
        compiler: compiles requests' constraints, for callers.
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
        budget: StepBudget,
        compiler: ConstraintCompiler,
        work: ModelWork,
        steps_ahead: int = 0,
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
            budget: chooses how many tokens each step computes.
            compiler: compiles requests' constraints. The core only keeps it for its callers.
            work: counts the work of its steps.
            steps_ahead: how many steps may be in flight while the next is launched.
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
        self._queue_order = ORDERS[info.scheduling]()
        self._budget = budget
        self._stats = StepStats(info, work, clock())
        self._live = LiveRequests(scheduler, self._new_output, policy.forget)
        self.backlog = self._live.backlog
        self._step_log = step_log
        self._kernels_compiling = kernels_compiling
        self.profiler = runner.profiler
        self._policy = policy
        self._steps_ahead = steps_ahead
        self._in_flight: deque[_InFlight] = deque()
        self._read_step: _ReadStep | None = None  # the last one, until `tell`
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
        self._live.add(request, order)

    def displace(self, request_id: str, error: DraftlineError) -> None:
        """End a request that has not run with ``error``, for the sake of another one. Others are ignored."""
        self._live.displace(request_id, error)

    def cancel(self, request_id: str) -> None:
        """End a request in the next step. Unknown ids are ignored."""
        self._live.cancel(request_id)

    def step(self) -> None:
        """Plan and launch a step, tell of the step that was read before, and read the oldest one in flight.

        A fault fails the requests of the step; the engine goes on with the others.

        Raises:
            DeviceLostError: the fault left no device to go on with.
        """
        started = self.now()
        ended = self._live.expire(started)
        # Which sequences run, with how many tokens and drafts, in which cache blocks.
        with self.profiler.part("plan"):
            self._policy.begin_step(self._scheduler.running)
            plan = self._scheduler.plan(self._policy.draft_len, self._step_tokens())
            catch_up = self._policy.catch_up(plan)
        # Launch this step first, then handle the results of earlier ones while the device computes it.
        planned = self.now()
        if plan.rows:
            ended += self._launch(plan, catch_up, started)
        self.tell()
        self._live.start([row.sequence for row in plan.admitted], planned)
        self._live.deliver(ended + self._live.end_cancelled(plan.cancelled, self.now()))
        self._let_others_run()
        if len(self._in_flight) > self._steps_ahead or (self._in_flight and not plan.rows):
            self._read(self._in_flight.popleft())
        if not self._in_flight:  # nothing else to do meanwhile
            self.tell()
        if not self.has_work:
            self._let_others_run()

    def tell(self) -> None:
        """Tell the clients of the step that was read last, and all that learn from it. It is known already, or none."""
        read = self._read_step
        if read is None:
            return
        with self.profiler.part("deliver"):
            self._learn(read)
            updates: OutputUpdates = []
            for output, row, tokens, logprobs, prompt_logprobs in read.kept:
                try:
                    of_output = output.updates(row, tokens, logprobs, prompt_logprobs, read.now, read.times)
                    updates.append((output, of_output))
                except Exception as error:  # noqa: BLE001 - it ends this request only
                    updates += self._live.fail_output(row.sequence, error)
                if row.drafts:
                    self._stats.drafts.count(row.drafts, len(tokens) - 1)  # drafts after the end count as rejected
            self._live.deliver(updates + read.failed)
        self._read_step = None

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
        """End the parts of the engine in other processes: other ranks, and what compiles constraints. Idempotent."""
        self._runner.close()
        self.compiler.close()

    def fail_all(self, error: Exception) -> None:
        """End every request with ``error``. Frees nothing: the engine has ended."""
        self._live.fail_all(error)

    def stats(self) -> EngineStats:
        """The engine's state now. Any thread may ask; the numbers may then be a step apart."""
        return self._stats.of_engine(
            self._scheduler.stats(),
            self.backlog,
            self._live.failed_outputs,
            self._kernels_compiling(),
            self._runner.captures.left,
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

    def _new_output(self, request: Request, sequence: Sequence) -> OutputState:
        return OutputState(request, sequence, self.tokenizer, self.info, self._stats.meter)

    def _step_tokens(self) -> int | None:
        """The token budget of the next step; None for the scheduler's maximum."""
        # It is for prompts: without one, the policy decides how many drafts are worth their time.
        if not self._scheduler.has_prompts:
            return None
        # A sequence whose last token is in flight does not decode any more.
        running = self._scheduler.running
        return self._budget.tokens(sum([row.computed >= row.prompt_len and row.known < row.max_len for row in running]))

    def _launch(self, plan: Plan, catch_up: tuple[DraftChunk, ...], started: float) -> OutputUpdates:
        self._launched += 1
        if self._step_log is not None:
            self._step_log.planned(self._launched, plan, self._scheduler.stats())
        try:
            earlier = [in_flight.step for in_flight in self._in_flight]
            step = self._runner.launch(plan, catch_up, earlier, self._before_long_launch)
        except Exception as error:  # noqa: BLE001 - any fault fails this step's requests only
            return self._fail_step(plan, error)
        started += step.capture_s  # what follows is measured, and tells how long such steps take
        caught_up = sum([chunk.count for chunk in catch_up])
        self._in_flight.append(_InFlight(self._launched, plan, caught_up, step, started, self.now() - started))
        return []

    def _before_long_launch(self) -> None:
        self.tell()
        self._let_others_run()

    def _read(self, in_flight: _InFlight) -> None:
        """Wait for a step, and commit the tokens that its outputs keep."""
        plan, step = in_flight.plan, in_flight.step
        try:
            with self.profiler.part("wait"):
                step.wait()
            arrived = self.now()
            results = step.results()
        except Exception as error:  # noqa: BLE001 - any fault fails this step's requests only
            self._live.deliver(self._fail_step(plan, error))
            return
        now = self.now()
        captured = step.capture_s > 0
        seconds = self._durations.of(in_flight.started, arrived, step.ended(), captured=captured)
        times = step.times(in_flight.host_s + now - arrived)
        with self.profiler.part("results"):
            self._read_step = _ReadStep(in_flight, seconds, now, times, *self._keep_tokens(plan, results))

    def _learn(self, read: _ReadStep) -> None:
        """Tell the statistics, the draft policy, the queue order and the token budget of a step."""
        in_flight, seconds = read.in_flight, read.seconds
        plan, rows = in_flight.plan, in_flight.plan.rows
        decoding = sum([row.start >= row.sequence.prompt_len for row in rows])
        self._stats.add(rows, decoding, in_flight.step.logits, seconds, read.now, read.times)
        if self._step_log is not None:
            self._step_log.read(in_flight.number, len(rows), seconds, in_flight.host_s)
        if read.verified:
            self._policy.observe(read.verified)
        self._policy.observe_step(plan, in_flight.caught_up_tokens, seconds)  # which may choose by that, too
        computed = sum([row.count for row in rows])
        self._queue_order.measure(computed, seconds)
        self._budget.measure(decoding, computed - decoding, seconds)

    def _keep_tokens(self, plan: Plan, results: StepResults) -> tuple[list[_KeptRow], list[Verified], OutputUpdates]:
        """Check stops, advance constraints and commit the tokens: of each output those up to its end.

        Returns:
            The kept rows, the verified sequences, and the updates of failed outputs, as `_ReadStep` has them.
        """
        kept_rows: list[_KeptRow] = []
        kept_tokens: list[tuple[int, ...]] = []
        verified: list[Verified] = []
        ended: list[Sequence] = []
        errors: list[tuple[Sequence, Exception]] = []
        for row, tokens, logprobs, prompt_logprobs in zip(plan.rows, *results, strict=True):
            sequence = row.sequence
            if sequence.finished:
                kept_tokens.append(())  # it ended while the step was in flight
                continue
            if row.drafts:
                verified.append((sequence, row.drafts, len(tokens) - 1))
            output = self._live.outputs[sequence]
            try:
                kept = output.keep(tokens)
            except Exception as error:  # noqa: BLE001 - it ends this request only
                kept_tokens.append(())
                errors.append((sequence, error))
                self._scheduler.finish(sequence)  # so that the commit skips it
                continue
            kept_tokens.append(kept)
            kept_rows.append((output, row, kept, logprobs, prompt_logprobs))
            if output.has_ended:
                ended.append(sequence)
        self._stats.generated_tokens += sum(map(len, kept_tokens))
        self._scheduler.commit(plan, kept_tokens)
        for sequence in ended:
            self._scheduler.finish(sequence)
        failed: OutputUpdates = []
        for sequence, reason in errors:  # after the commit: it ends the request's other outputs, too
            failed += self._live.fail_output(sequence, reason)
        return kept_rows, verified, failed

    def _fail_step(self, plan: Plan, error: Exception) -> OutputUpdates:
        """End every request that has a row in the plan."""
        logger.error("a step failed, and with it its %d sequences", len(plan.rows), exc_info=error)
        self._runner.check_device()
        updates = self._live.fail([row.sequence for row in plan.rows if not row.sequence.finished], error)
        self._scheduler.commit(plan, [()] * len(plan.rows))
        return updates
