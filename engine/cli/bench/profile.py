"""``draftline profile``: where the time and the memory of steps go, in this process or in a running server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from google.protobuf.duration_pb2 import Duration
from rich.console import Console

from draftline.engine.bench.contenders.shaped import SHAPE_HELP, shaped
from draftline.engine.bench.lines import ResultLines, result_lines
from draftline.engine.bench.plots.canvas import check_plot
from draftline.engine.bench.plots.memory import plot_memory
from draftline.engine.bench.profile.tables import kernel_table, memory_table, phase_table
from draftline.engine.bench.provenance import conditions, conditions_of
from draftline.engine.cli.backend import connected, server_errors
from draftline.engine.cli.bench.numbers import option_ints
from draftline.engine.cli.bench.output import OutputFile, console
from draftline.engine.cli.connection import Connection
from draftline.engine.cli.models import find_models
from draftline.engine.cli.views.top import Snapshot
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError
from draftline.engine.options import flag
from draftline.v1 import admin_pb2 as pb
from draftline.v1.admin_pb2_grpc import AdminServiceStub

if TYPE_CHECKING:
    from draftline.engine.bench.profile.steps import BatchRunner

_WIDTH = 150
_SHOWN_KERNELS = 20
_ROWS = (1, 8)
_PROMPT_LEN = 128
_STEPS = 20
_SECONDS = 2.0
_TRACES = Path("profiles")


def profile(
    shape: Annotated[str | None, typer.Option(metavar="NAME|FILE", help=SHAPE_HELP)] = None,
    rows: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="sequences of each batch [default: 1,8; with --memory 1, 2, 4, …]"),
    ] = None,
    prompt_len: Annotated[
        int | None, typer.Option(metavar="N", help=f"tokens of each prompt [default: {_PROMPT_LEN}]", min=1)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help=f"profiled decodes [default: {_STEPS}]", min=1, max=10_000)
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="instead, measure memory by batch size until the cache is full")
    ] = False,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="profile this running server, with the load that it has")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help=f"how long, of a server [default: {_SECONDS:g}]", min=0.01, max=60),
    ] = None,
    traces: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help=f"for Chrome traces [default: {_TRACES}]")
    ] = None,
    output: OutputFile = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="with --memory, plot the results to this file")
    ] = None,
    *,
    connection: Connection,
    engine: EngineConfig,
) -> None:
    """Profile steps: time by kernel and by part of the step, and memory by batch size.

    Prefill and decode of each batch run by the clock, then under torch's profiler. The limit of a step is what the
    device takes for the model's arithmetic and memory traffic at its peak rates: of known GPUs from data sheets, of
    others measured. Open the traces in https://ui.perfetto.dev.

    **Examples**

    - `draftline profile --shape qwen3-0.6b --rows 1,64 --prompt-len 512`
    - `draftline profile --model ./Qwen3-0.6B --memory --prompt-len 4096`
    - `draftline profile --server gpu7:50051 --seconds 5`; the server needs `--profile-dir`
    """
    if plot is not None:
        if not memory:
            raise UsageError("--plot: shows the memory by batch size, of --memory")
        check_plot(plot)
    if memory:
        _check_unset("has no part in --memory", steps=steps, traces=traces)
    if server is not None:
        own = {"shape": shape, "memory": memory or None, "rows": rows, "prompt_len": prompt_len, "steps": steps}
        _check_unset("needs an engine of its own, not --server", **own)
        with result_lines(output, conditions()) as lines:
            _of_server(server, seconds or _SECONDS, traces, lines, connection, engine)
        return
    _check_unset("is for --server; --steps and --rows are for an engine of its own", seconds=seconds)
    connection.check_unset()
    sizes = None if rows is None else option_ints("--rows", rows)
    if memory:
        with _loaded(shape, prompt_len or _PROMPT_LEN, output, engine) as local:
            _memory(local, sizes)
            if plot is not None:
                plot_memory(local.lines.written, plot)
        return
    folder = _folder(traces)
    with _loaded(shape, prompt_len or _PROMPT_LEN, output, engine) as local:
        _phases(local, sizes or list(_ROWS), steps or _STEPS, folder)


def _check_unset(problem: str, **options: object) -> None:
    """Refuse an option that would be ignored."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"{flag(name)}: {problem}")


def _folder(traces: Path | None) -> Path:
    """The folder for traces, which is made if it is missing."""
    folder = traces or _TRACES
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--traces: {folder}: {error.strerror}") from error
    return folder


@dataclass(frozen=True, slots=True)
class _Local:
    """An engine in this process, and what its results are written to.

    Attributes:
        runner: runs batches of it.
        common: the fields of every result.
        prompt_len: tokens of each prompt.
        lines: the results.
        console: for tables and progress.
    """

    runner: BatchRunner
    common: dict[str, Any]
    prompt_len: int
    lines: ResultLines
    console: Console


@contextmanager
def _loaded(shape: str | None, prompt_len: int, output: Path | None, engine: EngineConfig) -> Iterator[_Local]:
    """Load an engine in this process."""
    # These import torch, which takes seconds.
    from draftline.engine.bench.profile.steps import BatchRunner
    from draftline.engine.build import build_core

    with ExitStack() as stack:
        name = engine.model if shape is None else shape
        engine = stack.enter_context(shaped(engine, shape))
        find_models(engine)
        shown = console(_WIDTH)
        with shown.status(f"loading {name}"):
            core = build_core(engine)
        stack.callback(core.close)
        lines = stack.enter_context(result_lines(output, conditions_of(engine)))
        common = {"model": name, "device": core.info.device, "dtype": core.info.dtype, "prompt_len": prompt_len}
        yield _Local(BatchRunner(core, engine), common, prompt_len, lines, shown)


def _phases(local: _Local, rows: list[int], steps: int, traces: Path) -> None:
    """Profile the steps of batches of these sizes, with traces in a folder."""
    import torch

    from draftline.engine.bench.profile.limits import device_peak
    from draftline.engine.bench.profile.steps import profile_batch

    info = local.runner.core.info
    peak, origin = device_peak(info.peak, torch.device(info.device))
    peaks = {"peak_flops": peak.flops_per_s, "peak_bytes_per_s": peak.bytes_per_s, "peak_from": origin}
    for size in rows:
        for phase in profile_batch(local.runner, size, local.prompt_len, steps, traces):
            fields = {"benchmark": "profile", **local.common, **peaks, **phase.fields(peak)}
            _show(local.lines.write(fields), local.console)


def _memory(local: _Local, rows: list[int] | None) -> None:
    """Measure the memory of batches of these sizes, and of those at which the cache is full. None: powers of two."""
    from draftline.engine.bench.profile.memory import boundary, memory_by_batch

    room, slots = boundary(local.runner, local.prompt_len), local.runner.core.info.max_num_seqs
    for measured in memory_by_batch(local.runner, local.prompt_len, rows):
        local.lines.write({"benchmark": "memory", **local.common, "boundary": room, **measured.fields()})
    local.console.print(memory_table(local.lines.written))
    local.console.print(
        f"The cache has room for {room:,} such sequences at once. Beyond that, sequences wait or are preempted."
    )
    if room >= slots:
        local.console.print(f"--max-num-seqs {slots:,} ends this measurement before.")


def _of_server(
    address: str, seconds: float, traces: Path | None, lines: ResultLines, connection: Connection, engine: EngineConfig
) -> None:
    from draftline.engine.bench.profile.remote import phase_of_server

    shown = console(_WIDTH)
    with connected(address, engine, connection) as channel, server_errors():
        folder = _folder(traces)
        admin = AdminServiceStub(channel)

        def look() -> Snapshot:
            return Snapshot.of(admin.GetStatistics(pb.GetStatisticsRequest()).metrics, time.monotonic())

        duration = Duration()
        duration.FromNanoseconds(round(seconds * 1e9))
        before = look()
        with shown.status(f"profiling {address} for {seconds:g} s"):
            answer = admin.Profile(pb.ProfileRequest(duration=duration, include_trace=True))
        after = look()
    trace = folder / Path(answer.path).name
    trace.write_bytes(answer.trace)
    served = (after.labels("model") or [{}])[0]
    fields = {name: served.get(name, "") for name in ("model", "device", "dtype")}
    _show(lines.write({"benchmark": "profile", **fields, **phase_of_server(trace, before.number, after.number)}), shown)


def _show(line: dict[str, Any], shown: Console) -> None:
    shown.print(phase_table(line))
    shown.print(kernel_table(line, _SHOWN_KERNELS))
    shown.print(f"trace: {line['trace']}\n")
