"""``draftline bench sweep``: one load at many rates, numbers of clients, or lengths."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from draftline.engine.bench.contenders.shaped import SHAPE_HELP
from draftline.engine.bench.load.axes import AXES, at
from draftline.engine.bench.load.config import LoadConfig
from draftline.engine.bench.plots.canvas import check_plot
from draftline.engine.bench.plots.sweep import plot_sweep
from draftline.engine.cli.bench.load import TargetUrl, check_answered, run_loads
from draftline.engine.cli.bench.output import OutputFile
from draftline.engine.cli.connection import Connection
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError


def sweep(
    url: TargetUrl = None,
    clients: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,…",
            help="clients that each send the next request after the answer, and have four conversations or more",
        ),
    ] = None,
    rates: Annotated[str | None, typer.Option(metavar="X,X,…", help="conversations a second")] = None,
    prompt_lens: Annotated[str | None, typer.Option(metavar="LENGTHS,…", help="new tokens of a turn")] = None,
    output_lens: Annotated[str | None, typer.Option(metavar="LENGTHS,…", help="tokens of an answer")] = None,
    shape: Annotated[str | None, typer.Option(metavar="NAME|FILE", help=SHAPE_HELP)] = None,
    output: OutputFile = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="plot throughput and latency over the first axis")
    ] = None,
    *,
    load: LoadConfig,
    connection: Connection,
    engine: EngineConfig,
) -> None:
    """Repeat a load at every combination of the given values.

    **Examples**

    - `draftline bench sweep --url grpc://gpu7:50051 --clients 1,2,4,8,16,32,64,128 --preset medium --plot load.svg`
    - `draftline bench sweep --url http://gpu7:8000 --workload chat-serving --rates 1,2,4,8 --repeats 3`
    - `draftline bench sweep --prompt-lens 128,512 --output-lens 32,128` on an engine in this process
    """
    given = {"clients": clients, "rates": rates, "prompt_lens": prompt_lens, "output_lens": output_lens}
    axes = {name: text.split(",") for name, text in given.items() if text is not None}
    if not axes:
        raise UsageError("name what to vary: --clients, --rates, --prompt-lens or --output-lens")
    if clients is not None and rates is not None:
        raise UsageError("--clients and --rates: a closed loop has no rate; give one of them")
    if load.dataset is not None and (prompt_lens or output_lens):
        raise UsageError("--prompt-lens and --output-lens: the prompts and lengths are the dataset's")
    if plot is not None:
        check_plot(plot)
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    try:
        workloads = [
            ({AXES[name].field: _value(value) for name, value in point.items()}, at(load, point).resolved())
            for point in points
        ]
    except ValueError as error:
        raise UsageError(str(error)) from None
    varied = [AXES[name].field for name in axes]
    lines = run_loads(url, shape, load, workloads, varied, output, connection, engine)
    if plot is not None:
        plot_sweep(lines.written, varied[0], plot)
    check_answered(lines)


def _value(text: str) -> str | int | float:
    """A number where the text is one."""
    text = text.strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
