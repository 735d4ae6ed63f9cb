"""``AnswerFile``: the file of a batch's answers. A run that ended early goes on where it was."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from draftline.engine.errors import UsageError


class AnswerFile:
    """The answers so far, and the place to add more. A context manager that closes the file.

    Each line is written at once, and the file belongs to one process at a time. If a run was killed in the middle of a
    line, the next one removes that piece.

    Attributes:
        answered: the names of the requests that have an answer.
        failed: how many of those are errors.
    """

    def __init__(self, path: Path, ids: Collection[str]) -> None:
        """Open a file, or make it.

        Args:
            path: the file.
            ids: the names of all requests of the batch.

        Raises:
            UsageError: the file cannot be used, another process writes it, or it has answers of another batch.
        """
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise UsageError(f"{path}: is no regular file, so that no later run could go on with it")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UsageError(f"{path}: another process is writing it") from error
            self.failed = 0
            self.answered = self._read(ids)
        except BaseException:
            os.close(self._file)
            raise

    def _read(self, ids: Collection[str]) -> set[str]:
        answered: set[str] = set()
        end = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    answer = json.loads(line)
                    name, failed = answer["custom_id"], _is_error(answer)
                except (ValueError, KeyError, TypeError):
                    raise UsageError(f"{self._path}: line {number} is no answer of a batch") from None
                if name not in ids:
                    raise UsageError(f"{self._path}: line {number} answers {name!r}, which the batch does not have")
                answered.add(name)
                self.failed += failed
                end += len(line)
        os.ftruncate(self._file, end)
        return answered

    def write(self, line: bytes, *, is_error: bool) -> None:
        """Add a line.

        Raises:
            OSError: the disk is full.
        """
        self.failed += is_error
        while line:
            line = line[os.write(self._file, line) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        """The file itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file."""
        self.close()


def _is_error(answer: dict[str, Any]) -> bool:
    """Whether an answer's line has an error, of the batch or of the server."""
    return answer.get("error") is not None or (answer.get("response") or {}).get("status_code") != 200
