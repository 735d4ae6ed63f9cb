"""``Ablation``: the same load on a server of each variant, one after the other, and the differences to the baseline."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from tempfile import TemporaryFile
from typing import Any

from draftline.engine.bench.ablation.variants import BASELINE, Variant
from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.load.config import LoadConfig
from draftline.engine.bench.load.run import LoadRun, Sampling, run_load, warm_up
from draftline.engine.bench.load.workloads import Conversation
from draftline.engine.bench.summary import Limits, percentiles, summarize, unanswered
from draftline.engine.bench.targets.grpc import GrpcTarget
from draftline.engine.bench.targets.target import RequestError, Target
from draftline.engine.config import EngineConfig
from draftline.engine.errors import CallFailedError, DraftlineError, EngineStoppedError, temporary

_STOP_S = 30.0
"""Seconds in which a server must end."""

_ERROR_LINES = 3

Texts = dict[tuple[int, int, int], list[int]]
"""The tokens of each answer, by run, conversation and turn."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A variant's rounds: a summary of each, the tokens of all answers, and what its server said of itself."""

    rounds: Sequence[dict[str, Any]]
    texts: Texts
    server: dict[str, Any]


class Ablation:
    """Measures variants of one engine under one load.

    All conversations are there at once. The time to the first token counts from then, and from when a later turn is
    due.
    """

    def __init__(self, engine: EngineConfig, load: LoadConfig) -> None:
        """The baseline's options, and the load."""
        self._engine = engine
        self._load = load
        # Everything is there at once: arrivals over time would bound the speed, and hide the differences.
        self._workload = replace(load.resolved(), arrivals="closed")
        self._baseline: Measured | None = None

    @property
    def requests(self) -> int:
        """The requests of one variant."""
        conversations = self._load.draw(self._workload, 1 << 10, 1)
        return self._load.repeats * sum(len(conversation.turns) for conversation in conversations)

    async def measure(self, variant: Variant, progress: Callable[[Answer], object]) -> dict[str, Any]:
        """Start the variant's server, put the load on it, and return the fields of a result.

        The first variant is the baseline of the others. One that cannot start has an ``error`` in place of
        measurements.
        """
        fields: dict[str, Any] = {"benchmark": "ablation", "variant": variant.name, "state": variant.state}
        fields |= {"workload": self._workload.name, "preset": self._load.preset, "definition": asdict(variant)}
        try:
            measured = await self._measured(variant, progress)
        except (DraftlineError, ValueError) as error:
            if variant.name == BASELINE:
                raise
            return {**fields, "error": str(error)}
        if variant.name == BASELINE:
            self._baseline = measured
        assert self._baseline is not None, "the baseline comes first"
        return {**fields, "error": None, **_result(measured, self._baseline)}

    async def _measured(self, variant: Variant, progress: Callable[[Answer], object]) -> Measured:
        load, rounds, texts = self._load, [], Texts()
        sampling = Sampling(load.ignores_eos, load.temperature, load.seed)
        limits = Limits(load.ttft_limit, load.tpot_limit, load.e2e_limit)
        async with _server(variant, variant.config(self._engine)) as (target, said):
            for run in range(1, load.repeats + 1):
                conversations = load.draw(self._workload, target.info.vocab_size, run)
                if run == 1:
                    await _warm_up(target, conversations, sampling, load.warm_up)
                ran = await self._run(target, variant, conversations, sampling, progress)
                waits = percentiles(each.arrivals[0][0] - each.due_at for each in ran.answers if not each.error)
                rounds.append({**summarize(ran, limits), "first_token_ms": waits})
                texts |= {(run, each.conversation, each.turn): each.token_ids for each in ran.answers if not each.error}
        if (problem := unanswered(rounds)) is not None:
            raise CallFailedError(problem)
        return Measured(rounds, texts, said)

    async def _run(
        self,
        target: Target,
        variant: Variant,
        conversations: Sequence[Conversation],
        sampling: Sampling,
        progress: Callable[[Answer], object],
    ) -> LoadRun:
        most = self._workload.max_concurrent
        if variant.batching == "continuous":
            return await run_load(target, conversations, "tokens", sampling, most, progress)
        size = 1 if variant.batching == "single" else most or self._engine.max_num_seqs
        answers: list[Answer] = []
        seconds, cpu, started = 0.0, 0.0, time.perf_counter()
        for start in range(0, len(conversations), size):
            batch = [replace(each, arrives_s=0.0) for each in conversations[start : start + size]]
            ran = await run_load(target, batch, "tokens", sampling, None, progress)
            for answer in ran.answers:
                answer.conversation += start
                if not answer.turn:
                    answer.due_at = started  # it had to wait for the batches before
            answers += ran.answers
            seconds, cpu = seconds + ran.seconds, cpu + ran.client_cpu_s
        return LoadRun(answers, seconds, cpu)


async def _warm_up(target: Target, conversations: Sequence[Conversation], sampling: Sampling, requests: int) -> None:
    try:
        await warm_up(target, conversations, "tokens", sampling, requests)
    except RequestError as error:
        raise CallFailedError(f"the warm-up failed with {error.code}: {error}") from error


@asynccontextmanager
async def _server(variant: Variant, config: EngineConfig) -> AsyncIterator[tuple[GrpcTarget, dict[str, Any]]]:
    """The variant's server in a process of its own, and what it says of itself.

    Raises:
        EngineStoppedError: it ended before it served; with the last lines that it wrote.
    """
    spec = {
        "options": config.model_dump(mode="json", exclude_unset=True),
        "substitutes": variant.substitutes,
        "engine_process": variant.engine_process,
    }
    command = (sys.executable, "-P", "-m", "draftline.engine.bench.ablation.serving", json.dumps(spec))
    with temporary(TemporaryFile) as errors:
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=errors)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = await process.stdout.readline()
            if not line:
                errors.seek(0)
                last = errors.read().decode(errors="replace").strip().splitlines()[-_ERROR_LINES:]
                raise EngineStoppedError(" ".join(last) or "the server ended without a word")
            said = json.loads(line)
            target = await GrpcTarget.connect(said["address"], None, None)
            try:
                yield target, said
            finally:
                await target.close()
        finally:
            process.stdin.close()  # which ends the server
            try:
                await asyncio.wait_for(process.wait(), _STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()


def _result(measured: Measured, baseline: Measured) -> dict[str, Any]:
    """The fields of a result: medians of the rounds, and changes against the baseline's."""
    speeds = [each["tokens_per_s"] for each in measured.rounds]
    base = [each["tokens_per_s"] for each in baseline.rounds]
    ttft = [each["first_token_ms"]["p50"] for each in measured.rounds if each["first_token_ms"]]
    base_ttft = [each["first_token_ms"]["p50"] for each in baseline.rounds if each["first_token_ms"]]
    equal = sum(measured.texts.get(name) == tokens for name, tokens in baseline.texts.items())
    memory = measured.server["memory"]
    return {
        "tokens_per_s": statistics.median(speeds),
        "tokens_per_s_rounds": speeds,
        "tokens_per_s_change": statistics.median(speeds) / statistics.median(base) - 1,
        # One round has no spread to compare with.
        "within_noise": len(speeds) < 2 or (min(speeds) <= max(base) and min(base) <= max(speeds)),
        "first_token_ms_p50": statistics.median(ttft) if ttft else None,
        "first_token_change": statistics.median(ttft) / statistics.median(base_ttft) - 1
        if ttft and base_ttft
        else None,
        "memory": memory,
        "fixed_bytes": sum(memory[use] for use in ("weights", "activations", "graphs")),
        "cache_bytes_a_token": memory["cache"] / measured.server["cache_tokens"],
        "outputs": len(baseline.texts),
        "outputs_equal": equal,
        "failed": sum(each["failed"] for each in measured.rounds),
        "rounds": list(measured.rounds),
        "server": {name: value for name, value in measured.server.items() if name not in ("address", "memory")},
    }
