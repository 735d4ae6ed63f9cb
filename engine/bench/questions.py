"""Questions of a user's own: a file of prompts, for benchmarks whose result depends on the text."""

from __future__ import annotations

import json
from pathlib import Path

from draftline.engine.bench.load.datasets import DatasetError, read_dataset
from draftline.engine.bench.speculation.prompts import extraction
from draftline.engine.errors import unreadable

OWN = 64
"""Questions of the benchmarks' own, if no number is given."""


def read_questions(path: Path | None, limit: int | None) -> list[str]:
    """The first turns of a dataset's conversations, or the lines of a plain text; without a file, generated texts.

    At most ``limit``, spread evenly over the file.

    Raises:
        DatasetError: the file cannot be read, or an entry is wrong.
    """
    if path is None:
        return [question.text for question in extraction(limit or OWN)]
    if path.suffix in (".json", ".jsonl"):
        found = _prompts(path) or [turns[0].text for turns in read_dataset(path, None, 1, None, 0)]
    else:
        try:
            found = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DatasetError(f"{path}: {unreadable(error)}") from None
    if not found:
        raise DatasetError(f"{path}: has no prompt")
    if limit is None or limit >= len(found):
        return found
    return [found[index * len(found) // limit] for index in range(limit)]


def _prompts(path: Path) -> list[str]:
    """JSON lines with a text, or a ``prompt``, each; empty where the file has another form."""
    prompts = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                entry = json.loads(line)
                prompt = entry.get("prompt") if isinstance(entry, dict) else entry
                if not isinstance(prompt, str):
                    return []
                prompts.append(prompt)
    except (OSError, ValueError):
        return []  # `read_dataset` reports it
    return prompts
