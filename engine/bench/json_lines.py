"""JSON of files that users name: prompts and results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftline.engine.errors import unreadable


class FileError(ValueError):
    """A file cannot be read, or a part of it is no JSON. The message begins with the file, and the line."""


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, with or without a byte order mark.

    Raises:
        FileError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: {unreadable(error)}") from None


def json_lines(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """The values of lines that are not empty, each with its place, as ``prompts.jsonl:3``.

    Only a line feed ends a line: other line separators of Unicode may stand in a JSON text.

    Raises:
        FileError: a line is no JSON.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{path}:{number}"
            yield where, parse_json(where, line)


def parse_json(where: str, text: str) -> Any:
    """The value of a JSON text.

    Raises:
        FileError: it is no JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise FileError(f"{where}: not JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise FileError(f"{where}: not JSON: {error}") from None
