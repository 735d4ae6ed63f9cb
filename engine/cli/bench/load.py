"""Shared by the subcommands that put load on something: the target, the progress bar and the notes at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from draftline.engine.bench.contenders.shaped import shaped
from draftline.engine.bench.lines import ResultLines, result_lines
from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.load.config import LoadConfig
from draftline.engine.bench.load.workloads import Workload
from draftline.engine.bench.measure import BUSY_CLIENT, LoadBench
from draftline.engine.bench.measure import Progress as OnAnswer
from draftline.engine.bench.provenance import conditions, conditions_of
from draftline.engine.bench.summary import unanswered
from draftline.engine.bench.tables import load_table, turns_table
from draftline.engine.bench.targets.connect import connect
from draftline.engine.bench.targets.target import Target, TargetInfo
from draftline.engine.cli.bench.output import console, shown_at_the_end
from draftline.engine.cli.connection import Connection, check_no_engine_options
from draftline.engine.cli.models import find_models
from draftline.engine.config import EngineConfig
from draftline.engine.errors import CallFailedError, UsageError

_KNOWN_BEFORE = 0.05
"""Share of prompt tokens that chance does not explain: a chat's template may begin all prompts alike."""

TargetUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="the server: grpc://HOST:PORT, or http(s)://… of any OpenAI-compatible one"),
]
"""The server that a load is put on; None for an engine in this process."""

Load = tuple[Mapping[str, object], Workload]
"""A load, with the values of what a sweep varies; empty for a single load."""


def run_loads(
    url: str | None,
    shape: str | None,
    load: LoadConfig,
    workloads: Sequence[Load],
    varied: Sequence[str],
    output: Path | None,
    connection: Connection,
    engine: EngineConfig,
) -> ResultLines:
    """Put loads on a running server, or on an engine in this process where ``url`` is None.

    Args:
        url: the server's.
        shape: of the engine's random weights; None for a checkpoint.
        load: the options of every load.
        workloads: the loads.
        varied: the fields that a sweep changes.
        output: the file for the results; None for standard output.
        connection: to the server.
        engine: the options of an engine in this process.

    Returns:
        The results, which have been shown.

    Raises:
        UsageError: options are given that the target does not use, or do not fit it.
    """
    if url is not None and shape is not None:
        raise UsageError("--shape: the server at --url has its own model")

    async def run() -> None:
        async with opened(url, made, connection) as target:
            info = target.info if shape is None else replace(target.info, model=shape)
            await measure_loads(target, info, load, workloads, lines)

    varied = [*varied, *(["run"] if load.repeats > 1 else [])]
    with (
        shaped(engine, shape) as made,
        result_lines(output, conditions() if url else conditions_of(made)) as lines,
        shown_at_the_end(lines, partial(load_report, varied=varied)),
    ):
        uvloop.run(run())
    return lines


async def measure_loads(
    target: Target, info: TargetInfo, load: LoadConfig, workloads: Sequence[Load], lines: ResultLines, *names: str
) -> None:
    """Put loads on a target, one after the other, with a progress bar each, whose label begins with ``names``."""
    bench, shown = LoadBench(target, load, lines, info), console()
    for point, workload in workloads:
        name = ", ".join([*names, *(f"{axis} {value}" for axis, value in point.items())]) or workload.name
        with progress_bar(shown, bench.requests(workload) * load.repeats, name) as advance:
            await bench.measure(workload, point, advance)


@asynccontextmanager
async def opened(url: str | None, engine: EngineConfig, connection: Connection) -> AsyncIterator[Target]:
    """The target: a running server, or an engine in this process where ``url`` is None.

    Raises:
        UsageError: engine options are given with a URL, or connection options without one, or a file of certificates
            cannot be used.
    """
    if url is None:
        connection.check_unset("--url")
        find_models(engine)
        from draftline.engine.bench.targets.offline import OfflineTarget  # imports torch, which takes seconds

        target: Target = await OfflineTarget.start(engine)
    else:
        check_no_engine_options(engine, "--url", used=("model",))
        model = engine.model if "model" in engine.model_fields_set else None
        target = await connect(url, model, connection.bearer_token, connection.certificates())
    try:
        yield target
    finally:
        await target.close()


@contextmanager
def progress_bar(shown: Console, total: int, name: str) -> Iterator[OnAnswer]:
    """A bar of the ended requests, with the failures among them; hidden where standard error is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[failed]}"),
    )
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task(name, total=total, failed="")
        failed = 0

        def advance(answer: Answer) -> None:
            nonlocal failed
            failed += bool(answer.error)
            bar.update(task, advance=1, failed=f"{failed} failed" if failed else "")

        yield advance


def load_report(lines: Sequence[dict[str, Any]], varied: Sequence[str]) -> Iterator[RenderableType]:
    """The tables of loads and the notes; ``varied`` are the fields that a sweep changes."""
    yield load_table(lines, varied)
    if {*varied} <= {"run"} and lines[-1]["ttft_ms_by_turn"]:
        yield turns_table(lines[-1])
    yield from notes(lines)


def check_answered(lines: ResultLines) -> None:
    """Check that each run has an answer, after the results are written, shown and plotted.

    Raises:
        CallFailedError: all requests of a run failed.
    """
    if (problem := unanswered(lines.written)) is not None:
        raise CallFailedError(problem)


def notes(lines: Sequence[dict[str, Any]]) -> list[str]:
    """What a reader of the results must know."""
    found = []
    busy = max(line["client_cpu_share"] for line in lines)
    # An engine in this process shares its processor time.
    if busy > BUSY_CLIENT and lines[0]["protocol"] != "offline":
        found.append(f"The load generator itself used {busy:.0%} of a core: the server may be faster than this shows.")
    for line in lines:
        load = line["load_options"]
        fresh = load["turns"] == 1 and not load["shared_prefix"]
        if fresh and (line["cache_hit_rate"] or 0.0) > _KNOWN_BEFORE:
            found.append(
                f"The server's cache knew {line['cache_hit_rate']:.0%} of the prompts from an earlier run: give another --seed."
            )
            break
    found += [
        f"A run was interrupted. Its line has the requests that had ended: {line['requests']}."
        for line in lines
        if line.get("interrupted")
    ]
    failures = sorted({f"{line['first_error']}" for line in lines if line["failed"]})
    found += [f"A request failed: {message}" for message in failures[:3]]
    late = max((line["client_wait_ms"] or {"p99": 0.0})["p99"] for line in lines)
    if late > 100 and any(line["load_options"]["arrivals"] != "closed" for line in lines):
        found.append(
            f"Requests waited up to {late:,.0f} ms (p99) in the load generator for --max-concurrent, which no latency has."
        )
    return found
