"""``draftline bench plot``: an SVG file of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftline.engine.bench.plots.canvas import check_plot
from draftline.engine.bench.plots.choose import NAMES, plots_of, plotted_fields
from draftline.engine.bench.report.results import read_results
from draftline.engine.cli.bench.output import check_not_read
from draftline.engine.errors import UsageError


def plot(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULTS…", help="JSON lines of draftline bench, profile or train-draft")
    ],
    output: Annotated[Path, typer.Option(metavar="FILE.svg", help="the file to write")],
    what: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"of {', '.join(NAMES)}; needed where results allow several")
    ] = None,
) -> None:
    """Plot results: load by clients, rate or length; latency by turn; ablations; memory by batch size; a training.

    **Examples**

    - `draftline bench plot results.jsonl --output load.svg`
    - `draftline bench plot results.jsonl --what turns --output turns.svg`
    - `draftline bench plot curve.jsonl --output curve.svg`
    """
    check_plot(output, "--output")
    check_not_read(output, results)
    found = plots_of([line for path in results for line in read_results(path, plotted_fields)])
    if what is not None and what not in NAMES:
        raise UsageError(f"--what: {what}: not one of {', '.join(NAMES)}")
    names = list(found) if what is None else [what]
    if not found or names[0] not in found:
        raise UsageError(f"{', '.join(map(str, results))}: has no results for {what or ' or '.join(NAMES)}")
    if len(names) > 1:
        raise UsageError(f"--what: choose one of {', '.join(names)}")
    found[names[0]](output)
