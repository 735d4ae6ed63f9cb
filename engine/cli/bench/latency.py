"""``draftline bench latency``: one batch of equal requests, again and again, on an engine in this process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from typing import Annotated, Any

import typer
from rich.table import Table
from tqdm import tqdm

from draftline.engine.bench.contenders.shaped import SHAPE_HELP, shaped
from draftline.engine.bench.lines import ResultLines, result_lines
from draftline.engine.bench.load.lengths import Lengths
from draftline.engine.bench.load.run import Sampling, run_load, warm_up
from draftline.engine.bench.load.workloads import Workload
from draftline.engine.bench.provenance import conditions
from draftline.engine.bench.summary import percentiles
from draftline.engine.bench.tables import milliseconds
from draftline.engine.cli.bench.load import console, opened
from draftline.engine.cli.bench.numbers import option_ints
from draftline.engine.cli.bench.output import OutputFile
from draftline.engine.cli.connection import Connection
from draftline.engine.config import EngineConfig
from draftline.engine.errors import CallFailedError, UsageError


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
    with result_lines(output, {**conditions(), "benchmark": "latency"}) as lines, shaped(engine, shape) as config:
        asyncio.run(
            _run(sizes, Lengths(prompt_len, prompt_len), Lengths(output_len, output_len), rounds, shape, config, lines)
        )
    console().print(_table(lines.written))


async def _run(
    sizes: list[int],
    prompt: Lengths,
    output: Lengths,
    rounds: int,
    shape: str | None,
    config: EngineConfig,
    lines: ResultLines,
) -> None:
    sampling, seeds = Sampling(ignore_eos=True, temperature=0.0, seed=0), count(1)
    async with opened(None, config, Connection()) as target:
        info = target.info
        workload = Workload("latency", max(sizes), prompt, output)
        if info.max_model_len is not None and workload.max_model_len > info.max_model_len:
            problem = f"{workload.max_model_len} tokens, and the model's contexts have {info.max_model_len}"
            raise UsageError(f"--prompt-len and --output-len: {problem}")
        await warm_up(target, workload.draw(info.vocab_size, 0), "tokens", sampling, 2)
        with tqdm(total=len(sizes) * rounds, unit="batch", disable=None) as bar:
            for size in sizes:
                answers = []
                for _ in range(rounds):
                    drawn = replace(workload, conversations=size).draw(info.vocab_size, next(seeds))
                    run = await run_load(target, drawn, "tokens", sampling, None)
                    if failed := next((answer for answer in run.answers if answer.error), None):
                        raise CallFailedError(f"a request failed with {failed.error}: {failed.message}")
                    answers.append(list(run.answers))
                    bar.update()
                every = [answer for batch in answers for answer in batch]
                lines.write(
                    {
                        "engine": info.engine,
                        "engine_version": info.version,
                        "model": shape or info.model,
                        "device": info.device,
                        "dtype": info.dtype,
                        "batch": size,
                        "prompt_len": prompt.low,
                        "output_len": output.low,
                        "rounds": rounds,
                        "prefill_ms": percentiles(max(answer.ttft_s for answer in batch) for batch in answers),
                        "step_ms": percentiles(gap for answer in every for gap in answer.gaps_s()),
                        "total_ms": percentiles(max(answer.total_s for answer in batch) for batch in answers),
                    }
                )


def _table(lines: list[dict[str, Any]]) -> Table:
    shown = Table(title=f"{lines[0]['model']} on {lines[0]['device']}", title_justify="left", caption="p50 / p99")
    for name in ("batch", "in/out", "to the last first token ms", "between tokens ms", "total ms"):
        shown.add_column(name, justify="right")
    for line in lines:
        times = [milliseconds(line[name]) for name in ("prefill_ms", "step_ms", "total_ms")]
        shown.add_row(str(line["batch"]), f"{line['prompt_len']}/{line['output_len']}", *times)
    return shown
