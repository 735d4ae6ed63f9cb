"""``draftline bench serve``: a load on a server that runs already, or on an engine in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftline.engine.bench.contenders.shaped import SHAPE_HELP
from draftline.engine.bench.load.config import LoadConfig
from draftline.engine.bench.plots.canvas import check_plot
from draftline.engine.bench.plots.turns import has_turns, plot_turns
from draftline.engine.cli.bench.load import TargetUrl, check_answered, run_loads
from draftline.engine.cli.bench.output import OutputFile
from draftline.engine.cli.connection import Connection
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError


def serve(
    url: TargetUrl = None,
    shape: Annotated[str | None, typer.Option(metavar="NAME|FILE", help=SHAPE_HELP)] = None,
    output: OutputFile = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="plot latency and cache hits by turn to this file")
    ] = None,
    *,
    load: LoadConfig,
    connection: Connection,
    engine: EngineConfig,
) -> None:
    """Put a load on a server, and report latencies, throughput, goodput, cache hits and errors.

    Without `--url` the load goes to an engine in this process, which takes the engine options. With it, `--model` is
    the model that requests name.

    Every run is a JSON line with its conditions; a table goes to standard error.

    **Examples**

    - `draftline bench serve --url grpc://127.0.0.1:50051 --workload chat-serving`
    - `draftline bench serve --url http://gpu7:8000 --workload agent-session --preset medium --output results.jsonl`
    - `draftline bench serve --url http://gpu7:8000 --dataset sharegpt.json --conversations 200 --rate 8`
    """
    if plot is not None:
        check_plot(plot)
        if load.dataset is None and load.resolved().turns == 1:
            raise UsageError(f"--plot: shows turns, and a conversation of {load.workload} has one")
    lines = run_loads(url, shape, load, [({}, load.resolved())], [], output, connection, engine)
    if plot is not None and any(map(has_turns, lines.written)):
        plot_turns(lines.written, plot)
    check_answered(lines)
