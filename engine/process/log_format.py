"""The format of the server's log: lines for people, or JSON objects for programs. Both contain a record's ``fields``."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Literal

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


FORMATTERS: Mapping[Literal["text", "json"], type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def start_logging(level: str, form: Literal["text", "json"]) -> None:
    """Make all loggers write to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[form]())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return fields


def _plain(value: object) -> str:
    """A value as one word, so that a client's text cannot look like another field or another line."""
    text = str(value)
    return text if text.isascii() and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)
