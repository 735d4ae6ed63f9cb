"""The files that benchmarks write, and the tables that they show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from draftline.engine.bench.lines import ResultLines
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


def console(width: int = 180) -> Console:
    """Standard error, where progress and tables go: results go to standard output. ``width`` is that in a file."""
    found = Console(stderr=True)
    return found if found.is_terminal else Console(stderr=True, width=width)


@contextmanager
def shown_at_the_end(
    lines: ResultLines, show: Callable[[Sequence[dict[str, Any]]], Iterable[RenderableType]]
) -> Iterator[None]:
    """Show the results at the end, also of a benchmark that was interrupted or has failed.

    Args:
        lines: the results.
        show: makes the tables and the notes of results, of which there are some.
    """
    try:
        yield
    finally:
        if lines.written:
            for shown in show(lines.written):
                console().print(shown)
