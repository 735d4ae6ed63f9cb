"""``LoadBench``: a load on a target, as often as wanted, and a result of each run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any

from draftline.engine.bench.lines import ResultLines
from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.load.config import LoadConfig
from draftline.engine.bench.load.run import LoadInterrupted, LoadRun, Sampling, run_load, warm_up
from draftline.engine.bench.load.workloads import Conversation, Workload
from draftline.engine.bench.summary import Limits, summarize
from draftline.engine.bench.targets.target import RequestError, Target, TargetInfo
from draftline.engine.errors import CallFailedError, UsageError
from draftline.engine.process.startup import keep_heap
from draftline.engine.stats import Utilization, WorkCounts

BUSY_CLIENT = 0.9
"""Share of a core above which the load generator may be what is measured."""

Progress = Callable[[Answer], object]


class LoadBench:
    """Measures one target. Its runs never repeat a prompt."""

    def __init__(
        self, target: Target, config: LoadConfig, lines: ResultLines, described_as: TargetInfo | None = None
    ) -> None:
        """Measure ``target`` as ``config`` says, and write the results to ``lines``.

        ``described_as`` is what the lines say of the target; what it says itself where None.
        """
        self._target = target
        self._info = described_as or target.info
        self._config = config
        self._lines = lines
        self._serials = count(1)
        self._form = config.prompts or ("chat" if config.dataset else target.info.form)
        self._sampling = Sampling(config.ignores_eos, config.temperature, config.seed)
        self._is_warm = False

    def requests(self, workload: Workload) -> int:
        """The requests of one run of a workload."""
        conversations = self._config.draw(workload, 1 << 10, 0)
        return sum(len(conversation.turns) for conversation in conversations)

    async def measure(
        self, workload: Workload, point: Mapping[str, object], progress: Progress
    ) -> list[dict[str, Any]]:
        """Run a workload ``repeats`` times. Returns the lines.

        Args:
            workload: the load.
            point: what a sweep varies, with its values; empty for a single load.
            progress: called with every answer.

        Raises:
            UsageError: the workload's contexts are longer than the model's.
            CallFailedError: the first request of the warm-up fails.
            LoadInterrupted: it was cancelled. A line of the requests that had ended is written, and says so.
        """
        config, written = self._config, []
        drawn = [config.draw(workload, self._info.vocab_size, next(self._serials)) for _ in range(config.repeats)]
        self._check(workload, drawn)
        for run, conversations in enumerate(drawn):
            if not self._is_warm:
                try:
                    await warm_up(self._target, conversations, self._form, self._sampling, config.warm_up)
                except RequestError as error:
                    raise CallFailedError(
                        f"the warm-up failed with {error.code}: {error}{self._hint(error)}"
                    ) from error
                await self._target.ready()
                # In the middle of an answer, the garbage collector would hold up its tokens for 0.1 s.
                keep_heap()
                self._is_warm = True
            before = await self._target.work()
            try:
                measured = await run_load(
                    self._target, conversations, self._form, self._sampling, workload.max_concurrent, progress
                )
            except LoadInterrupted as interrupted:
                if interrupted.run.answers:
                    use = await _utilization(self._target, before)
                    self._write(workload, {**point, "interrupted": True}, run, interrupted.run, use)
                raise
            written.append(self._write(workload, point, run, measured, await _utilization(self._target, before)))
        return written

    def _write(
        self,
        workload: Workload,
        point: Mapping[str, object],
        run: int,
        measured: LoadRun,
        utilization: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Write the line of a run."""
        info, config = self._info, self._config
        limits = Limits(config.ttft_limit, config.tpot_limit, config.e2e_limit)
        return self._lines.write(
            {
                "benchmark": "load",
                "workload": config.dataset.name if config.dataset else workload.name,
                "preset": None if config.dataset else config.preset,
                **point,
                "engine": info.engine,
                "engine_version": info.version,
                "model": info.model,
                "device": info.device,
                "dtype": info.dtype,
                "protocol": info.protocol,
                "prompts": self._form,
                "run": run + 1,
                **summarize(measured, limits),
                "utilization": utilization,
                "load_options": described(workload, config),
                "target": target_fields(info),
            }
        )

    def _check(self, workload: Workload, drawn: Sequence[Sequence[Conversation]]) -> None:
        """The drawn lengths count: the longest that a distribution allows hardly ever comes."""
        limit = self._target.info.max_model_len
        if limit is None or self._config.dataset is not None or self._form != "tokens":
            return
        longest = max(conversation.tokens for conversations in drawn for conversation in conversations)
        if longest > limit:
            problem = f"its contexts have up to {longest} tokens, and the model's have {limit}"
            raise UsageError(f"workload {workload.name}: {problem}; choose a smaller preset or shorter lengths")

    def _hint(self, error: RequestError) -> str:
        if self._form == "tokens" and error.code in ("400", "404", "422"):
            return " (a server may take no token ids: try --prompts text or --prompts chat)"
        return ""


def described(workload: Workload, config: LoadConfig) -> dict[str, object]:
    """The load as fields of a line."""
    closed = workload.arrivals == "closed"
    return {
        "arrivals": workload.arrivals,
        "rate": None if closed else workload.rate,
        "max_concurrent": workload.max_concurrent,
        "conversations": config.conversations if config.dataset else workload.conversations,
        "turns": config.turns if config.dataset else workload.turns,
        "shared_prefix": workload.shared_prefix,
        "prompt_len": None if config.dataset else str(workload.prompt),
        "later_len": None if workload.later is None or config.dataset else str(workload.later),
        "output_len": config.output_len if config.dataset else str(workload.output),
        "long": None if workload.long is None else f"{workload.long[1]:.0%} of {workload.long[0]}",
        "think_s": workload.think_s,
        "temperature": config.temperature,
        "ignore_eos": config.ignores_eos,
        "seed": config.seed,
    }


def target_fields(info: TargetInfo) -> dict[str, object]:
    """What the target says about itself, besides what has fields of its own in the line."""
    known = asdict(info)
    return {"max_model_len": known["max_model_len"], **known["details"]}


async def _utilization(target: Target, before: WorkCounts | None) -> dict[str, Any] | None:
    """The steps since ``before`` and their use of the device's peak rates; None where the target does not say."""
    after = await target.work()
    if before is None or after is None:
        return None
    return asdict(Utilization.of(after - before, target.peak()))
