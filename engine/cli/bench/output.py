"""The options that many benchmarks have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OutputFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="append the JSON lines here, not on standard output")
]
"""A file for results."""

PlotFile = Annotated[Path | None, typer.Option(metavar="FILE.svg", help="plot the results to this file")]
"""A file for a plot. `draftline bench plot` draws the same from the file of results."""
