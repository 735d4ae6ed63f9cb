"""Structured output: the schemas that are enforced exactly, and compile times, compared with other engines.

    python benchmarks/structured.py --schemas FOLDER
    python benchmarks/structured.py --suite JSON-SCHEMA-TEST-SUITE/tests --engines draftline

FOLDER holds files with a ``schema`` and ``tests``, a list of ``data`` and ``valid``. Files of the official suite are
lists of these; its folder may be that of one draft or of all. Engines that are not installed are left out.

Results are JSON lines, on standard output or in --output; a table of them goes to standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common.arguments import add_output
from rich.table import Table

from draftline.engine.bench.lines import result_lines
from draftline.engine.bench.provenance import conditions
from draftline.engine.cli.bench.output import console
from schemas.coverage import ENGINES, judge, read_cases, read_suite, summary


def table(results: Sequence[dict[str, Any]]) -> Table:
    """The outcomes and compile times of every engine on every folder."""
    shown = Table(
        "schemas", "engine", "exact", "incomplete", "unsound", "refused", "p50", "p95", "max", title="Coverage"
    )
    for column in shown.columns[2:]:
        column.justify = "right"
    for result in results:
        shown.add_row(
            f"{result['corpus']} ({result['schemas']})",
            result["engine"],
            f"{result['exact']} ({result['exact'] / result['schemas']:.1%})",
            str(result["incomplete"]),
            str(result["unsound"]),
            str(result["refused"]),
            *(f"{result[f'compile_{which}_ms']:,.1f} ms" for which in ("p50", "p95", "max")),
        )
    return shown


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=Path, help="a folder of schemas with instances")
    parser.add_argument("--suite", type=Path, help="a folder of the official test suite, or of one of its drafts")
    parser.add_argument("--engines", default=",".join(ENGINES), help=f"comma-separated (default: {','.join(ENGINES)})")
    add_output(parser)
    arguments = parser.parse_args(argv)
    if arguments.schemas is None and arguments.suite is None:
        parser.error("--schemas, --suite or both are required")
    unknown = set(arguments.engines.split(",")) - set(ENGINES)
    if unknown:
        parser.error(f"unknown engines: {', '.join(sorted(unknown))}")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    arguments = _arguments(argv)
    try:
        corpora = {} if arguments.schemas is None else {arguments.schemas.name: read_cases(arguments.schemas)}
        corpora |= {} if arguments.suite is None else read_suite(arguments.suite)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    with result_lines(arguments.output, conditions()) as lines:
        for name in arguments.engines.split(","):
            try:
                engine = ENGINES[name]()
            except ImportError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                continue
            for corpus, cases in corpora.items():
                fields = {
                    "section": "coverage",
                    "engine": name,
                    "engine_version": version(name),
                    "corpus": corpus,
                    **summary({case.name: judge(engine, case) for case in cases}),
                }
                lines.write(fields)
    console().print(table(lines.written))


if __name__ == "__main__":
    main()
