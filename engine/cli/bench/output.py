"""The files that benchmarks write."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from draftline.engine.errors import UsageError

OutputFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="append the JSON lines here, not on standard output")
]
"""A file for results."""

PlotFile = Annotated[Path | None, typer.Option(metavar="FILE.svg", help="plot the results to this file")]
"""A file for a plot. `draftline bench plot` draws the same from the file of results."""


def check_not_read(output: Path, results: Iterable[Path]) -> None:
    """Check that a page or a plot does not replace the results that it shows.

    Raises:
        UsageError: it would.
    """
    if output.exists() and any(path.exists() and path.samefile(output) for path in results):
        raise UsageError(f"--output: {output}: has the results; name another file")
