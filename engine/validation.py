"""Convert pydantic errors to `FieldViolation`s: one for each wrong field, with its path and the rejected value."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from draftline.engine.errors import FieldViolation
from draftline.engine.options import FieldsError

_SHOWN = 60
"""Characters of a wrong value that an error quotes."""


def violations(error: ValidationError, parent: str = "") -> list[FieldViolation]:
    """The violations in ``error``. Their paths begin with ``parent``: ``sampling`` gives ``sampling.stop[0]``."""
    return list(_violations(error, parent))


def _violations(error: ValidationError, parent: str) -> Iterator[FieldViolation]:
    for detail in error.errors(include_url=False):
        description = _length(detail) or _description(detail["msg"], detail["input"], bool(detail["loc"]))
        match detail.get("ctx"):
            case {"error": FieldsError(fields=fields)}:
                for field in fields:
                    yield FieldViolation(_path(parent, (*detail["loc"], field)), description)
            case _:
                yield FieldViolation(_path(parent, detail["loc"]), description)


def _path(parent: str, location: tuple[int | str, ...]) -> str:
    path = parent
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]":  # pydantic's mark for a mapping's key, which follows the key itself
            path += f".{part}" if path else part
    return path


def _length(detail: ErrorDetails) -> str | None:
    """What is wrong with the length of a list; None if something else is wrong. pydantic words it for Python."""
    match detail:
        case {"type": "too_long", "ctx": {"actual_length": length, "max_length": limit}}:
            return f"has {length} entries; at most {limit} fit"
        case {"type": "too_short", "ctx": {"actual_length": length, "min_length": least}}:
            return f"has {length} entries; it needs at least {least}"
        case _:
            return None


def _description(message: str, value: object, is_field: bool) -> str:
    message = message.removeprefix("Value error, ").replace("a valid tuple", "a list")  # as JSON and YAML have
    if not is_field:
        return message  # about the whole object, whose repr would hide the message
    shown = quoted(value)
    return message if message.startswith((f"{shown} ", f"{shown}:")) else f"{message}, not {shown}"


def quoted(value: object) -> str:
    """A wrong value as an error shows it: its beginning, if it is long."""
    shown = f"{value:.7g}" if isinstance(value, float) else repr(value)
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
