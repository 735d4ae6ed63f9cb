"""Questions of a user's own: a file of prompts, for benchmarks whose result depends on the text."""

from __future__ import annotations

from pathlib import Path

from draftline.engine.bench.json_lines import FileError, read_text
from draftline.engine.bench.load.datasets import DatasetError, read_dataset
from draftline.engine.bench.speculation.prompts import evenly, extraction

OWN = 64
"""Questions of the benchmarks' own, if no number is given."""


def read_questions(path: Path | None, limit: int | None) -> list[str]:
    """The first prompts of a dataset's conversations, or the lines of a plain text; without a file, generated texts.

    At most ``limit``, spread evenly over the file.

    Raises:
        DatasetError: the file cannot be read, or an entry is wrong.
    """
    if path is None:
        return [question.text for question in extraction(limit or OWN)]
    if path.suffix in (".json", ".jsonl"):
        found = [turns[0].text for turns in read_dataset(path, None, 1, None, 0)]
    else:
        try:
            found = [line for line in read_text(path).split("\n") if line.strip()]
        except FileError as error:
            raise DatasetError(str(error)) from None
    if not found:
        raise DatasetError(f"{path}: has no prompt")
    return evenly(found, limit)
