"""``draftline bench latency``: one batch of equal requests, again and again, on an engine in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import Annotated, Any

import typer
from rich.table import Table
from tqdm import tqdm

from draftline.engine.bench.contenders.shaped import SHAPE_HELP, shaped
from draftline.engine.bench.lines import result_lines
from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.load.lengths import Lengths
from draftline.engine.bench.load.run import Sampling, run_load, warm_up
from draftline.engine.bench.load.workloads import Workload
from draftline.engine.bench.provenance import conditions_of
from draftline.engine.bench.rounds import results_of_rounds
from draftline.engine.bench.summary import percentiles
from draftline.engine.bench.tables import milliseconds
from draftline.engine.bench.targets.target import Target
from draftline.engine.cli.bench.load import opened
from draftline.engine.cli.bench.numbers import option_ints
from draftline.engine.cli.bench.output import OutputFile, shown_at_the_end
from draftline.engine.cli.connection import Connection
from draftline.engine.config import EngineConfig
from draftline.engine.errors import CallFailedError, UsageError
from draftline.engine.options import flag


def latency(
    batches: Annotated[str, typer.Option(metavar="N,N,…", help="requests at once")] = "1",
    prompt_len: Annotated[int, typer.Option(metavar="N", min=1, help="tokens of each prompt")] = 128,
    output_len: Annotated[int, typer.Option(metavar="N", min=1, help="tokens of each output")] = 64,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="rounds of each batch")] = 5,
    shape: Annotated[str | None, typer.Option(metavar="NAME|FILE", help=SHAPE_HELP)] = None,
    output: OutputFile = None,
    *,
    engine: EngineConfig,
) -> None:
    """Measure the time of a batch without a server: to the first token, of a step, and to the end.

    No prompt comes twice, so the prefix cache has no part in it.

    **Examples**

    - `draftline bench latency --batches 1,8,64 --shape qwen3-0.6b`
    - `draftline bench latency --prompt-len 512 --output-len 32`
    """
    sizes = option_ints("--batches", batches)
    _check_batches_may_wait(engine, max(sizes), prompt_len)
    workload = Workload("latency", max(sizes), Lengths(prompt_len, prompt_len), Lengths(output_len, output_len))
    with (
        shaped(engine, shape) as config,
        result_lines(output, {**conditions_of(config), "benchmark": "latency"}) as lines,
        asyncio.Runner() as runner,
        _opened(runner, config) as target,
        shown_at_the_end(lines, _tables),
        tqdm(total=len(sizes) * rounds, unit="batch", disable=None) as bar,
    ):
        for fields in _measure(runner, target, workload, sizes, rounds, bar.update):
            lines.write({**fields, "model": shape or fields["model"]})


def _check_batches_may_wait(engine: EngineConfig, batch: int, prompt_len: int) -> None:
    """Raise `UsageError` if the engine would refuse requests of a batch, all of which come at once."""
    waiting = {
        "max_waiting": (batch, "requests"),
        "max_waiting_tokens": (batch * prompt_len if batch > 1 else 0, "tokens of prompts"),  # one may always wait
    }
    for option, (number, unit) in waiting.items():
        if number > (limit := getattr(engine, option)):
            raise UsageError(f"--batches: {number} {unit} come at once, and {flag(option)} is {limit}")


@contextmanager
def _opened(runner: asyncio.Runner, config: EngineConfig) -> Iterator[Target]:
    """An engine in this process, in the runner's loop."""
    stack = AsyncExitStack()
    target = runner.run(stack.enter_async_context(opened(None, config, Connection())))
    try:
        yield target
    finally:
        runner.run(stack.aclose())


def _measure(
    runner: asyncio.Runner,
    target: Target,
    workload: Workload,
    sizes: Sequence[int],
    rounds: int,
    progress: Callable[[], object],
) -> Iterator[dict[str, Any]]:
    """Measure batches of these sizes, after a warm-up.

    Yields the fields of each size's result; see `results_of_rounds`.
    """
    info, sampling, seeds = target.info, Sampling(ignore_eos=True, temperature=0.0, seed=0), count(1)
    if info.max_model_len is not None and workload.max_model_len > info.max_model_len:
        problem = f"{workload.max_model_len} tokens, and the model's contexts have {info.max_model_len}"
        raise UsageError(f"--prompt-len and --output-len: {problem}")
    runner.run(warm_up(target, workload.draw(info.vocab_size, 0), "tokens", sampling, 2))
    runner.run(target.ready())
    about = {
        "engine": info.engine,
        "engine_version": info.version,
        "model": info.model,
        "device": info.device,
        "dtype": info.dtype,
    }

    def batch(size: int) -> Sequence[Answer]:
        drawn = replace(workload, conversations=size).draw(info.vocab_size, next(seeds))
        answers = runner.run(run_load(target, drawn, "tokens", sampling, None)).answers
        if failed := next((answer for answer in answers if answer.error), None):
            raise CallFailedError(f"a request failed with {failed.error}: {failed.message}")
        progress()
        return answers

    for size in sizes:
        batches = (batch(size) for _ in range(rounds))
        yield from results_of_rounds(batches, lambda taken: [{**about, **_summarize(workload, taken)}])


def _summarize(workload: Workload, batches: Sequence[Sequence[Answer]]) -> dict[str, Any]:
    """The fields of one size's batches."""
    return {
        "batch": len(batches[0]),
        "prompt_len": workload.prompt.low,
        "output_len": workload.output.low,
        "rounds": len(batches),
        "prefill_ms": percentiles(max(answer.ttft_s for answer in batch) for batch in batches),
        "step_ms": percentiles(gap for batch in batches for answer in batch for gap in answer.gaps_s()),
        "total_ms": percentiles(max(answer.total_s for answer in batch) for batch in batches),
    }


def _tables(lines: Sequence[dict[str, Any]]) -> list[Table]:
    shown = Table(title=f"{lines[0]['model']} on {lines[0]['device']}", title_justify="left", caption="p50 / p99")
    for name in ("batch", "in/out", "to the last first token ms", "between tokens ms", "total ms"):
        shown.add_column(name, justify="right")
    for line in lines:
        times = [milliseconds(line[name]) for name in ("prefill_ms", "step_ms", "total_ms")]
        shown.add_row(str(line["batch"]), f"{line['prompt_len']}/{line['output_len']}", *times)
    return [shown]
