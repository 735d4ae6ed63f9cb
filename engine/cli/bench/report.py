"""``draftline bench report``: one HTML page of one file of results, or of two compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftline.engine.bench.report.page import render
from draftline.engine.bench.report.results import read_results, reported_fields
from draftline.engine.cli.bench.output import check_not_read
from draftline.engine.errors import UsageError


def report(
    results: Annotated[Path, typer.Argument(help="JSON lines of results", metavar="A.jsonl")],
    other: Annotated[Path | None, typer.Argument(help="results to compare with them", metavar="B.jsonl")] = None,
    output: Annotated[Path, typer.Option(metavar="FILE.html", help="the page")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="the heading of the page")] = None,
) -> None:
    """Write one page with tables and charts of results. It is a single file, and needs no network.

    Of two files it shows each number of both, their ratio, and whether it is more than noise: repeat the runs
    (`--repeats 3` or more), or it cannot tell.

    **Examples**

    - `draftline bench report results.jsonl`
    - `draftline bench report before.jsonl after.jsonl --output report.html`
    """
    paths = [results] if other is None else [results, other]
    names = [path.name if len({each.name for each in paths}) == len(paths) else str(path) for path in paths]
    if len(set(names)) < len(names):
        raise UsageError(f"{results}: is named twice")
    check_not_read(output, paths)
    lines = [read_results(path, reported_fields) for path in paths]
    page = render(dict(zip(names, lines, strict=True)), title or " and ".join(names))
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output: {output}: {error.strerror}") from error
    typer.echo(f"wrote {output}", err=True)
