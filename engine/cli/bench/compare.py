"""``draftline bench compare``: the same load on servers of several engines, one after the other."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from draftline.engine.bench.contenders.servers import PEERS, Peer, Running, program_of, started
from draftline.engine.bench.contenders.shaped import SHAPE_HELP, shaped
from draftline.engine.bench.lines import ResultLines, result_lines
from draftline.engine.bench.load.axes import at
from draftline.engine.bench.load.config import LoadConfig
from draftline.engine.bench.plots.canvas import check_plot
from draftline.engine.bench.plots.sweep import plot_sweep
from draftline.engine.bench.provenance import conditions_of_servers
from draftline.engine.bench.targets.connect import connect
from draftline.engine.cli.bench.load import Load, check_answered, load_report, measure_loads
from draftline.engine.cli.bench.output import OutputFile, console, shown_at_the_end
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError


def compare(
    engines: Annotated[str, typer.Option(metavar="NAME,…", help=f"of {', '.join(PEERS)}")] = "draftline",
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="a checkpoint, which every engine loads [default: smollm2]")
    ] = None,
    shape: Annotated[str | None, typer.Option(metavar="NAME|FILE", help=SHAPE_HELP)] = None,
    clients: Annotated[
        str | None,
        typer.Option(metavar="N,N,…", help="repeat the load with so many clients, of four conversations or more each"),
    ] = None,
    program: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="the Python, or the program, of an engine [can be repeated]"),
    ] = None,
    flags: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FLAGS", help="further flags of an engine's server [can be repeated]"),
    ] = None,
    output: OutputFile = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="plot the engines over --clients")] = None,
    *,
    load: LoadConfig,
) -> None:
    """Start each engine's server in turn, put the same load on it over HTTP, and stop it.

    Prompts, lengths and warm-up are the same for all. Every line has the engine's version and all flags of its server.
    An engine must be installed for the Python that `--program` names, or for this one.

    **Examples**

    - `draftline bench compare --engines draftline,vllm --shape qwen3-0.6b --clients 1,8 --program vllm=/opt/bin/python`
    - `draftline bench compare --engines draftline,llama.cpp --model model.gguf --flags "llama.cpp=--threads 2"`
    """
    names = [name.strip() for name in engines.split(",")]
    programs, extra = _by_name("program", program), _by_name("flags", flags)
    for option, named in (("engines", names), ("program", programs), ("flags", extra)):
        if unknown := [name for name in named if name not in PEERS]:
            raise UsageError(f"--{option}: {unknown[0] or repr('')}: not one of {', '.join(PEERS)}")
    for option, named in (("program", programs), ("flags", extra)):
        if unused := [name for name in named if name not in names]:
            raise UsageError(f"--{option}: {unused[0]} is not one of --engines {engines}")
    if plot is not None and clients is None:
        raise UsageError("--plot needs --clients")
    try:
        points = [{}] if clients is None else [{"clients": text} for text in clients.split(",")]
        workloads = [
            ({name: int(text) for name, text in point.items()}, at(load, point).resolved()) for point in points
        ]
    except ValueError as error:
        raise UsageError(str(error)) from None
    if plot is not None:
        check_plot(plot)
    chosen = [(PEERS[name], program_of(PEERS[name], programs.get(name))) for name in names]
    config = EngineConfig() if model is None else EngineConfig(model=model)
    varied = ([] if clients is None else ["clients"]) + (["run"] if load.repeats > 1 else [])
    with (
        shaped(config, shape) as made,
        result_lines(output, conditions_of_servers()) as lines,
        shown_at_the_end(lines, partial(load_report, varied=varied)),
    ):
        for peer, path in chosen:
            checkpoint = made.model if peer.name == "draftline" else _file_of(made.model)
            with _server(peer, path, checkpoint, shape is not None, shlex.split(extra.get(peer.name, ""))) as server:
                uvloop.run(_run(peer, server, load, workloads, shape or config.model, lines))
    if plot is not None:
        plot_sweep(lines.written, "clients", plot)
    check_answered(lines)


@contextmanager
def _server(peer: Peer, path: str, model: str, random: bool, flags: Sequence[str]) -> Iterator[Running]:
    shown = console()
    if shown.is_terminal:
        shown.print(f"starting {peer.name}")
    with started(peer, path, model, random, flags) as server:
        yield server


async def _run(
    peer: Peer,
    server: Running,
    load: LoadConfig,
    workloads: Sequence[Load],
    model: str,
    lines: ResultLines,
) -> None:
    target = await connect(server.url)
    try:
        served = target.info.model
        details = {**target.info.details, "command": shlex.join(server.command), "served_model": served}
        info = replace(target.info, engine=peer.name, version=server.version, details=details)
        await measure_loads(target, replace(info, model=model), load, workloads, lines, peer.name)
    finally:
        await target.close()


def _file_of(model: str) -> str:
    """The file of the embedded model, which other engines do not know by its name."""
    from draftline.models.checkpoints.resolve import resolve_model

    return str(resolve_model(model).path) if model == EngineConfig().model else model


def _by_name(option: str, values: Sequence[str] | None) -> dict[str, str]:
    found = {}
    for value in values or ():
        name, separator, rest = value.partition("=")
        if not separator or not rest:
            raise UsageError(f"--{option}: {value!r} is not NAME={'PATH' if option == 'program' else 'FLAGS'}")
        if name in found:
            raise UsageError(f"--{option}: {name} is set twice")
        found[name] = rest
    return found
