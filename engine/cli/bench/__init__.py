"""``draftline bench``: one file a subcommand. The measurements themselves are in ``engine/bench/``."""

from __future__ import annotations

import typer

from draftline.engine.cli.late import late_group

_NAMES = (
    "serve",
    "sweep",
    "compare",
    "throughput",
    "latency",
    "speculation",
    "structured",
    "exactness",
    "ablate",
    "report",
    "plot",
)

app = typer.Typer(
    name="bench",
    add_completion=False,
    pretty_exceptions_enable=False,
    cls=late_group({name: f"draftline.engine.cli.bench.{name}:{name}" for name in _NAMES}),
)


@app.callback()
def bench() -> None:
    """Measure a server or an engine: latency under load, throughput, speculation, exactness."""
