"""``draftline profile``: where the time and the memory of steps go, of an engine in this process or of a running server."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from google.protobuf.duration_pb2 import Duration
from rich.console import Console

from draftline.engine.bench.lines import ResultLines, result_lines
from draftline.engine.bench.plots.canvas import check_plot
from draftline.engine.bench.plots.memory import plot_memory
from draftline.engine.bench.profile.tables import kernel_table, memory_table, phase_table
from draftline.engine.bench.provenance import conditions
from draftline.engine.cli.backend import connected, server_errors
from draftline.engine.cli.bench.numbers import option_ints
from draftline.engine.cli.bench.output import OutputFile
from draftline.engine.cli.bench.shape import engine_of_shape
from draftline.engine.cli.connection import NEEDS_SERVER, Connection
from draftline.engine.cli.models import find_models
from draftline.engine.cli.views.top import Snapshot
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError
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
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="random weights in this shape, as qwen3-0.6b, or a config.json's; not --model"
        ),
    ] = None,
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

    Prefill and decode of each batch run by the clock, then under torch's profiler. The limit of a step is what the device takes
    for the model's arithmetic and memory traffic at its peak rates: of known GPUs from data sheets, of others measured. Open
    the traces in https://ui.perfetto.dev.

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
    if connection != Connection():
        raise UsageError(NEEDS_SERVER)
    with ExitStack() as stack:
        sizes = None if rows is None else option_ints("--rows", rows)
        folder = None if memory else _folder(traces)
        _local(shape, sizes, prompt_len or _PROMPT_LEN, steps or _STEPS, folder, output, plot, engine, stack)


def _check_unset(problem: str, **options: object) -> None:
    """Refuse an option that would be ignored."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"--{name.replace('_', '-')}: {problem}")


def _folder(traces: Path | None) -> Path:
    """The folder for traces, which is made if it is missing."""
    folder = traces or _TRACES
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--traces: {folder}: {error.strerror}") from error
    return folder


def _local(
    shape: str | None,
    rows: list[int] | None,
    prompt_len: int,
    steps: int,
    traces: Path | None,
    output: Path | None,
    plot: Path | None,
    engine: EngineConfig,
    stack: ExitStack,
) -> None:
    """Profile an engine in this process: its steps, with traces in a folder, or without one its memory."""
    # These import torch, which takes seconds.
    import torch

    from draftline.engine.bench.profile.steps import BatchRunner
    from draftline.engine.build import build_core

    name = engine.model if shape is None else shape
    if shape is not None:
        engine = engine_of_shape(shape, engine, Path(stack.enter_context(tempfile.TemporaryDirectory())))
    find_models(engine)
    console = _console()
    with console.status(f"loading {name}"):
        core = build_core(engine)
    if core.compiler is not None:
        stack.callback(core.compiler.close)
    lines = stack.enter_context(result_lines(output, conditions(torch.device(core.info.device))))
    runner = BatchRunner(core, engine)
    common = {"model": name, "device": core.info.device, "dtype": core.info.dtype, "prompt_len": prompt_len}
    if traces is None:
        _memory(runner, common, rows, prompt_len, lines, console)
        if plot is not None:
            plot_memory(lines.written, plot)
    else:
        _phases(runner, common, rows or list(_ROWS), prompt_len, steps, traces, lines, console)


def _phases(
    runner: BatchRunner,
    common: dict[str, Any],
    rows: list[int],
    prompt_len: int,
    steps: int,
    traces: Path,
    lines: ResultLines,
    console: Console,
) -> None:
    import torch

    from draftline.engine.bench.profile.limits import device_peak
    from draftline.engine.bench.profile.steps import phases

    peak, origin = device_peak(runner.core.info.peak, torch.device(runner.core.info.device))
    for phase in phases(runner, rows, prompt_len, steps, traces):
        peaks = {"peak_flops": peak.flops_per_s, "peak_bytes_per_s": peak.bytes_per_s, "peak_from": origin}
        _show(lines.write({"benchmark": "profile", **common, **peaks, **phase.fields(peak)}), console)


def _memory(
    runner: BatchRunner,
    common: dict[str, Any],
    rows: list[int] | None,
    prompt_len: int,
    lines: ResultLines,
    console: Console,
) -> None:
    from draftline.engine.bench.profile.memory import boundary, memory_by_batch

    room, slots = boundary(runner, prompt_len), runner.core.info.max_num_seqs
    for measured in memory_by_batch(runner, prompt_len, rows):
        lines.write({"benchmark": "memory", **common, "boundary": room, **measured.fields()})
    console.print(memory_table(lines.written))
    console.print(
        f"The cache has room for {room:,} such sequences at once. Beyond that, sequences wait or are preempted."
    )
    if room >= slots:
        console.print(f"--max-num-seqs {slots:,} ends this measurement before.")


def _of_server(
    address: str, seconds: float, traces: Path | None, lines: ResultLines, connection: Connection, engine: EngineConfig
) -> None:
    from draftline.engine.bench.profile.remote import phase_of_server

    console = _console()
    with connected(address, engine, connection) as channel, server_errors():
        folder = _folder(traces)
        admin = AdminServiceStub(channel)

        def look() -> Snapshot:
            return Snapshot.of(admin.GetStatistics(pb.GetStatisticsRequest()).metrics, time.monotonic())

        duration = Duration()
        duration.FromNanoseconds(round(seconds * 1e9))
        before = look()
        with console.status(f"profiling {address} for {seconds:g} s"):
            answer = admin.Profile(pb.ProfileRequest(duration=duration, include_trace=True))
        after = look()
    trace = folder / Path(answer.path).name
    trace.write_bytes(answer.trace)
    served = (after.labels("model") or [{}])[0]
    fields = {name: served.get(name, "") for name in ("model", "device", "dtype")}
    _show(
        lines.write({"benchmark": "profile", **fields, **phase_of_server(trace, before.number, after.number)}), console
    )


def _show(line: dict[str, Any], console: Console) -> None:
    console.print(phase_table(line))
    console.print(kernel_table(line, _SHOWN_KERNELS))
    console.print(f"trace: {line['trace']}\n")


def _console() -> Console:
    """Standard error: results go to standard output."""
    found = Console(stderr=True)
    return found if found.is_terminal else Console(stderr=True, width=_WIDTH)
