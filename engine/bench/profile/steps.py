"""``BatchRunner`` and ``profile_batch``: prompts and decodes, first by the clock, then under torch's profiler."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftline.engine.bench.profile.trace import TraceSummary
from draftline.engine.config import EngineConfig
from draftline.engine.core import Core
from draftline.engine.errors import UsageError
from draftline.engine.params import SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.request import RequestBuilder
from draftline.engine.stats import DevicePeak, Utilization, WorkCounts

SETTLE_STEPS = 4
"""Decodes between the prompts and the measured ones: the first ones may be launched beside a prompt's end."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a batch.

    Attributes:
        name: ``prefill`` or ``decode``.
        rows: sequences.
        work: its steps, timed without the profiler.
        summary: of its steps under the profiler.
        trace: the file of the trace.
    """

    name: str
    rows: int
    work: WorkCounts
    summary: TraceSummary
    trace: Path

    def fields(self, peak: DevicePeak | None) -> dict[str, Any]:
        """The fields of a result.

        Times of parts and kernels are of one step, in microseconds. None is an unknown peak.
        """
        limit = None if peak is None or not self.work.steps else limit_s(self.work, peak)
        steps, use, summary = self.summary.steps, Utilization.of(self.work, peak), self.summary
        return {
            "phase": self.name,
            "rows": self.rows,
            "steps": self.work.steps,
            "step_ms": round(1e3 * use.step_s, 4),
            "mfu": use.mfu,
            "bandwidth": use.bandwidth,
            "limit_ms": None if limit is None else round(1e3 * limit / self.work.steps, 4),
            "limit_share": None if limit is None else limit / self.work.seconds,
            "profiled_steps": steps,
            "profiled_step_ms": round(summary.span_us / steps / 1e3, 4),
            "busy_share": summary.busy_us / summary.span_us,
            "parts": [
                {
                    "part": part.name,
                    "host_us": round(part.host_us / steps, 2),
                    "device_us": round(part.device_us / steps, 2),
                    "kernels": round(part.kernels / steps, 2),
                }
                for part in summary.parts
            ],
            "kernels": [
                {
                    "kernel": kernel.name,
                    "part": kernel.part,
                    "calls": round(kernel.calls / steps, 2),
                    "us": round(kernel.us / steps, 2),
                }
                for kernel in summary.kernels
            ],
            "trace": str(self.trace),
        }


def limit_s(work: WorkCounts, peak: DevicePeak) -> float:
    """The time that the device takes at least, at its peak rates, in seconds."""
    return max(work.flops / peak.flops_per_s, work.num_bytes / peak.bytes_per_s)


class BatchRunner:
    """Runs batches of random prompts of one length on an engine of its own.

    Attributes:
        core: the engine.
        max_drafts: the most drafts of a sequence in a step.
        caches_prefixes: whether blocks of prompts that have ended are kept.
    """

    def __init__(self, core: Core, config: EngineConfig) -> None:
        """Nothing runs on ``core``, which has these options."""
        self.core = core
        self.max_drafts = config.draft_tokens if core.info.drafters else 0
        self.caches_prefixes = config.prefix_caching
        self._builder = RequestBuilder(core.info, core.tokenizer, config.ageing_s, core.compiler)
        self._batches = 0

    def check(self, rows: int, prompt_len: int, output_len: int) -> None:
        """Raise a `UsageError` if a batch cannot run at once."""
        info = self.core.info
        if rows > info.max_num_seqs:
            raise UsageError(f"--rows: {rows} sequences, but at most {info.max_num_seqs} run at once (--max-num-seqs)")
        if prompt_len + output_len > info.max_model_len:
            raise UsageError(
                f"--prompt-len: {prompt_len} tokens and {output_len} outputs do not fit max_model_len {info.max_model_len}"
            )
        room = info.cache_blocks // -(-(prompt_len + output_len) // info.block_size)
        if rows > room:
            raise UsageError(f"--rows: {rows} sequences, but the cache has room for {room}")

    @contextmanager
    def batch(self, rows: int, prompt_len: int, output_len: int, serial: int | None = None) -> Iterator[None]:
        """Queue a batch, and cancel what is left of it at the end.

        Its prompts are new, unless a ``serial`` is given: the rows of batches with the same serial have the same
        prompts.
        """
        core = self.core
        self._batches += 1
        rng = random.Random(f"batch {self._batches}" if serial is None else f"serial {serial}")
        names = [f"{self._batches}-{row}" for row in range(rows)]
        sampling = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, seed=0)
        for name in names:
            prompt = tuple(rng.choices(range(core.info.config.vocab_size), k=prompt_len))
            wanted = GenerateRequest(prompt, sampling)
            core.add(self._builder.build(name, wanted, lambda updates: None, core.now()))
        try:
            yield
        finally:
            for name in names:
                core.cancel(name)
            while core.has_work:
                core.step()

    def prefill(self, rows: int) -> None:
        """Step until every row has its first token."""
        before = self.core.stats().generated_tokens
        while self.core.stats().generated_tokens < before + rows:
            self.core.step()

    def decode(self, steps: int) -> None:
        """Make so many steps."""
        for _ in range(steps):
            self.core.step()


def profile_batch(runner: BatchRunner, rows: int, prompt_len: int, steps: int, folder: Path) -> list[Phase]:
    """Profile prefill and decode of one batch: a round to warm up, a round by the clock, and one under the profiler.

    Raises:
        UsageError: the batch cannot run at once.
    """
    # A step may decide several tokens of a row, if it has drafts.
    output_len = (2 * SETTLE_STEPS + steps) * (1 + runner.max_drafts) + 1
    runner.check(rows, prompt_len, output_len)

    def round_of(measured: Callable[[str, Callable[[], None]], None]) -> None:
        with runner.batch(rows, prompt_len, output_len):
            measured("prefill", lambda: runner.prefill(rows))
            runner.decode(SETTLE_STEPS)
            measured("decode", lambda: runner.decode(steps))

    works: dict[str, WorkCounts] = {}
    traces: dict[str, Path] = {}

    def timed(name: str, run: Callable[[], None]) -> None:
        before, started = runner.core.stats().work, time.perf_counter()
        run()
        work, seconds = runner.core.stats().work - before, time.perf_counter() - started
        works[name] = WorkCounts(work.steps, seconds, work.flops, work.num_bytes)

    def traced(name: str, run: Callable[[], None]) -> None:
        path = traces[name] = folder / f"{name}-{rows}.json.gz"
        runner.core.profiler.start()
        try:
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        finally:
            runner.core.profiler.stop(path)

    round_of(lambda name, run: run())
    round_of(timed)
    round_of(traced)
    return [Phase(name, rows, works[name], TraceSummary.read(traces[name]), traces[name]) for name in works]
