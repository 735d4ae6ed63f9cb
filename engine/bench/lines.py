"""``ResultLines``: results as JSON lines, on standard output or in a file, each with what it was measured under."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from draftline.engine.errors import UsageError

FORMAT = 1
"""The version of the fields, in every line as ``format``."""


def json_line(fields: Mapping[str, Any]) -> str:
    """Fields as one line of JSON, which has no infinite numbers: one is the text ``inf``, as in options."""
    return json.dumps(_finite(fields), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {name: _finite(each) for name, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
        case _:
            return value


class ResultLines:
    """Writes results as they come, and keeps them.

    Attributes:
        written: every result, as it was written.
    """

    def __init__(self, out: TextIO, common: Mapping[str, Any]) -> None:
        """``common`` fields come first in every line."""
        self.written: list[dict[str, Any]] = []
        self._out = out
        self._common = common

    def write(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Write a result at once, so that a run that is broken off keeps it. Returns the whole line."""
        line = {**self._common, **fields}
        self._out.write(json_line(line) + "\n")
        self._out.flush()
        self.written.append(line)
        return line


@contextmanager
def result_lines(output: Path | None, common: Mapping[str, Any]) -> Iterator[ResultLines]:
    """Append lines of the current `FORMAT` to a file, or print them where ``output`` is None.

    A file that this makes, and that gets no line, is removed.

    Raises:
        UsageError: the file cannot be opened.
    """
    common = {"format": FORMAT, **common}
    if output is None:
        yield ResultLines(sys.stdout, common)
        return
    is_new = not output.exists()
    try:
        out = output.open("a", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output: {output}: {error.strerror}") from error
    with out:
        lines = ResultLines(out, common)
        try:
            yield lines
        finally:
            if is_new and not lines.written:
                output.resolve().unlink(missing_ok=True)
