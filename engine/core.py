"""The engine's core: live requests in, one step at a time, updates out. Synchronous; one thread owns it."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from draftline.engine.client import EngineInfo, EngineStats, Sink
from draftline.engine.errors import StepFailedError
from draftline.engine.output_state import OutputState
from draftline.engine.outputs import Failed, Update
from draftline.engine.request import Request
from draftline.engine.runner import Runner
from draftline.engine.scheduler import Scheduler
from draftline.engine.sequence import Plan, Sequence
from draftline.models.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Live:
    """A request that has outputs still running."""

    request: Request
    outputs: dict[int, OutputState]


class Core:
    """Runs requests to their ends. Every method is called from one thread, except `Sequence.cancelled`'s setting."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        tokenizer: Tokenizer,
        info: EngineInfo,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` gives seconds; requests' ``submitted_at`` must be on the same clock."""
        self.info = info
        self.tokenizer = tokenizer
        self._scheduler = scheduler
        self._runner = runner
        self.now = clock
        self._eos_ids = frozenset(info.eos_token_ids)
        self._live: dict[str, _Live] = {}
        self._steps = 0
        self._generated_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._live)

    def is_live(self, request_id: str) -> bool:
        """Whether a request is unfinished. Any thread may ask; a request is over before its last update is delivered."""
        return request_id in self._live

    def add(self, request: Request) -> None:
        """Queue a request, whose id no live request has."""
        outputs = {
            sequence.index: OutputState(sequence, self.tokenizer, self._eos_ids, request.submitted_at)
            for sequence in request.sequences
        }
        self._live[request.request_id] = _Live(request, outputs)
        for sequence in request.sequences:
            self._scheduler.add(sequence)

    def cancel(self, request_id: str) -> None:
        """Let the next step end a request; unknown ids are ignored."""
        live = self._live.get(request_id)
        if live is not None:
            for output in live.outputs.values():
                output.sequence.cancelled = True

    def step(self) -> None:
        """Plan, run and commit one step, and hand its updates to the requests' sinks.

        A fault fails the requests of the step; the engine goes on with the others.
        """
        plan = self._scheduler.plan(self._draft_len)
        updates = [(s, self._output(s).cancel(self.now())) for s in plan.cancelled]
        if plan.rows:
            try:
                updates += self._run(plan)
            except Exception as error:
                logger.exception("a step failed, and with it its %d sequences", len(plan.rows))
                updates += self._fail(plan, error)
        self._deliver(updates)

    def fail_all(self, error: Exception) -> None:
        """End every request with ``error``, without freeing anything: the engine is over."""
        live, self._live = self._live, {}
        for request_id, entry in live.items():
            entry.request.sink([(request_id, Failed(error))])

    def stats(self) -> EngineStats:
        """The engine's state now."""
        scheduler = self._scheduler.stats()
        return EngineStats(
            running=scheduler.running,
            waiting=scheduler.waiting,
            free_blocks=scheduler.free_blocks,
            cached_blocks=scheduler.cached_blocks,
            total_blocks=scheduler.total_blocks,
            steps=self._steps,
            generated_tokens=self._generated_tokens,
            preemptions=scheduler.preemptions,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            prefix_query_tokens=scheduler.prefix_query_tokens,
        )

    def check(self) -> None:
        """Assert the scheduler's and the cache's invariants (for tests and soaks)."""
        self._scheduler.check()

    def _draft_len(self, sequence: Sequence) -> int:
        """How many drafts a sequence would like in the next step."""
        return self._runner.max_draft_tokens

    def _run(self, plan: Plan) -> list[tuple[Sequence, list[Update]]]:
        """Run the plan's rows, commit what their outputs keep, and release those that ended."""
        started = self.now()
        results = self._runner.run(plan)
        now = self.now()
        self._steps += 1
        updates: list[tuple[Sequence, list[Update]]] = []
        kept_tokens: list[list[int]] = []
        for row, result in zip(plan.rows, results, strict=True):
            output = self._output(row.sequence)
            output.scheduled(started)
            kept, news = output.advance(row.start, result, now)
            kept_tokens.append(kept)
            updates.append((row.sequence, news))
            self._generated_tokens += len(kept)
        self._scheduler.commit(plan, kept_tokens)
        for sequence, news in updates:
            if any(update.ends_output for update in news):
                self._scheduler.finish(sequence)
        return updates

    def _fail(self, plan: Plan, error: Exception) -> list[tuple[Sequence, list[Update]]]:
        """End every request that had a row in the plan."""
        failed = {row.sequence.request_id: row.sequence for row in plan.rows}
        for request_id in failed:
            for output in self._live[request_id].outputs.values():
                self._scheduler.finish(output.sequence)
        failure = StepFailedError(f"a step of the engine failed: {type(error).__name__}")
        failure.__cause__ = error
        return [(sequence, [Failed(failure)]) for sequence in failed.values()]

    def _output(self, sequence: Sequence) -> OutputState:
        return self._live[sequence.request_id].outputs[sequence.index]

    def _deliver(self, updates: Iterable[tuple[Sequence, list[Update]]]) -> None:
        """One call a sink, with everything that this step has for it; forget requests that ended."""
        by_sink: dict[Sink, list[tuple[str, Update]]] = defaultdict(list)
        for sequence, news in updates:
            live = self._live.get(sequence.request_id)
            if live is None:
                continue
            by_sink[live.request.sink].extend((sequence.request_id, update) for update in news)
            for update in news:
                if update.ends_request:
                    live.outputs.clear()
                elif update.ends_output:
                    del live.outputs[sequence.index]
            if not live.outputs:
                del self._live[sequence.request_id]
        for sink, pairs in by_sink.items():
            if pairs:
                sink(pairs)
