"""``check_fields``: the types of fields in a line of results, which a file may have damaged."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from draftline.engine.bench.json_lines import FileError

EACH = "[]"
"""The part of a path that stands for every entry of a list."""

_SHOWN = 60
"""Characters of a wrong value that an error quotes."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value must be: in words, and as a check."""

    name: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and abs(value) <= sys.float_info.max


TEXT = Kind("a text", lambda value: isinstance(value, str))
OBJECT = Kind("an object", lambda value: isinstance(value, Mapping))
BOOLEAN = Kind("true or false", lambda value: isinstance(value, bool))
FINITE = Kind("a finite number", _is_finite)
NUMBER = Kind("a number", lambda value: _is_number(value) or value in ("inf", "-inf", "nan"))  # as `json_line` writes
NUMBER_OR_TEXT = Kind("a finite number or a text", lambda value: isinstance(value, str) or _is_finite(value))


@dataclass(frozen=True, slots=True)
class Field:
    """A field that a reader of results uses.

    Attributes:
        path: the names that lead to it.
        kind: what it must be, unless it is missing or null.
        needed: whether it may be neither.
    """

    path: tuple[str, ...]
    kind: Kind
    needed: bool = False


def check_fields(where: str, line: Mapping[str, Any], fields: Iterable[Field]) -> None:
    """Check the fields of a line.

    Raises:
        FileError: one is wrong. The message names ``where`` and the field.
    """
    for field in fields:
        if problem := _problem(field, field.path, line, ""):
            raise FileError(f"{where}: {problem}")


def _problem(field: Field, path: tuple[str, ...], value: Any, place: str) -> str | None:
    """What is wrong with a value at ``place``, from which ``path`` leads to the field; None if nothing is."""
    if value is None:
        return f"{place}: is missing" if field.needed else None
    if not path:
        return None if field.kind.holds(value) else _mismatch(place, field.kind.name, value)
    name, *rest = path
    if name == EACH:
        if not isinstance(value, list):
            return _mismatch(place, "a list", value)
        entries = [(f"{place}[{index}]", entry) for index, entry in enumerate(value)]
    else:
        if not OBJECT.holds(value):
            return _mismatch(place, OBJECT.name, value)
        entries = [(f"{place}.{name}" if place else name, value.get(name))]
    return next((problem for at, entry in entries if (problem := _problem(field, tuple(rest), entry, at))), None)


def _mismatch(place: str, wanted: str, value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return f"{place}: must be {wanted}, not {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}"
