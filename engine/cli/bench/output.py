"""The option that all benchmarks have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OutputFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="append the JSON lines here, not on standard output")
]
"""A file for results."""
