"""``draftline bench``: one file a subcommand. The measurements themselves are in ``engine/bench/``."""

from __future__ import annotations

from collections.abc import Callable

import typer

from draftline.engine.cli.bench import (
    ablate,
    compare,
    exactness,
    latency,
    plot,
    report,
    serve,
    speculation,
    structured,
    sweep,
    throughput,
)
from draftline.engine.cli.help import HelpCommand, HelpGroup
from draftline.engine.cli.options import command

app = typer.Typer(name="bench", add_completion=False, pretty_exceptions_enable=False, cls=HelpGroup)
_SUBCOMMANDS: tuple[Callable[..., None], ...] = (
    serve.serve,
    sweep.sweep,
    compare.compare,
    throughput.throughput,
    latency.latency,
    speculation.speculation,
    structured.structured,
    exactness.exactness,
    ablate.ablate,
    report.report,
    plot.plot,
)
for function in _SUBCOMMANDS:
    app.command(cls=HelpCommand)(command(function))


@app.callback()
def bench() -> None:
    """Measure a server or an engine: latency under load, throughput, speculation, exactness."""
