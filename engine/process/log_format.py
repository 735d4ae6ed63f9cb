"""The format of the server's log: lines for people, or JSON objects for programs.

Both contain a record's ``fields``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, TextIO

from typing_extensions import override


class TextFormatter(logging.Formatter):
    """``time LEVEL logger: message name=value …``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        return line + "".join(f" {name}={_plain(value)}" for name, value in _fields(record).items())


class JsonFormatter(logging.Formatter):
    """One JSON object for each record: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, and its fields."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        seconds, milliseconds = divmod(round(record.created * 1000), 1000)
        entry: dict[str, object] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


ERROR_PREFIX = "draftline: error: "
"""The beginning of the line that says why a process of the command line ends."""

_RECORD = '{"time": '
"""The beginning of every record of `JsonFormatter`."""

LogFormat = Literal["text", "json"]

FORMATTERS: Mapping[LogFormat, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def start_logging(level: str, form: LogFormat) -> None:
    """Make all loggers write to standard error.

    In JSON, lines that libraries write to standard error by themselves (gRPC, CUDA, an allocator that fails) become
    records too, those of child processes included. `logging.shutdown` writes the last of them; a process that ends
    without its interpreter's own exit calls it.
    """
    formatter = FORMATTERS[form]()
    handler = logging.StreamHandler() if form == "text" else _ForeignLines(formatter)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _ForeignLines(logging.StreamHandler[TextIO]):
    """Puts a pipe in the place of standard error, and makes a record of every line that comes through it."""

    def __init__(self, formatter: logging.Formatter) -> None:
        """``formatter`` of these records: a line may come at once."""
        super().__init__(os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1, encoding="utf-8"))
        self.setFormatter(formatter)
        reading, writing = os.pipe()
        os.dup2(writing, sys.stderr.fileno())
        os.close(writing)
        self._thread = threading.Thread(target=self._read, args=(reading,), name="draftline-stderr", daemon=True)
        self._thread.start()

    def _read(self, pipe: int) -> None:
        with os.fdopen(pipe, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with suppress(OSError):  # a full disk: what the next lines say can be written once there is room
                    self._write(line)

    def _write(self, line: str) -> None:
        """Write the record of one line. Without the handler's lock: `close` waits for this thread, and has it."""
        if line.startswith(_RECORD):  # of a child process that logs in JSON itself
            self.stream.write(line)
        elif line.strip():
            level = logging.ERROR if line.startswith(ERROR_PREFIX) else logging.WARNING
            record = logging.LogRecord("stderr", level, "", 0, line.rstrip(), None, None)
            self.stream.write(self.format(record) + self.terminator)

    @override
    def close(self) -> None:
        """Read what is left: the last lines are those that say why a process ends."""
        sys.stderr.flush()
        os.dup2(self.stream.fileno(), sys.stderr.fileno())  # closes the pipe, unless a child has it
        self._thread.join(timeout=1)
        super().close()


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return fields


def _plain(value: object) -> str:
    """A value as one word, so that a client's text cannot look like another field or another line."""
    text = str(value)
    return text if text.isascii() and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)
