"""Literals and enums: the values that the validator itself accepts, tried one by one."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from enum import Enum, Flag
from typing import Any, Final

from pydantic_core import SchemaValidator, ValidationError

from draftline.structured.types.core.place import CoreSchema, Fragment, Place, Reader

MAX_FLAGS: Final = 8
"""The most flags of which combinations are written: these have 256."""


def read_literal(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """A Literal's values."""
    del reader
    return _values(schema, place, schema["expected"])


def read_enum(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """An Enum's values, and combinations of a Flag's."""
    del reader
    members = schema["members"]
    return _values(schema, place, [*members, *_combinations(schema.get("cls"), [one.value for one in members])])


def read_none(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """None."""
    del reader, schema, place
    return {"type": "null"}


def enum_key(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """The names of members that a Literal or an Enum accepts as keys."""
    validator = SchemaValidator({"type": "dict", "keys_schema": dict(schema)})
    raw = [_plain(value) for value in schema.get("expected") or schema.get("members") or ()]
    names = [value if isinstance(value, str) else json.dumps(value) for value in raw if _is_scalar(value)]
    accepted = [name for name in dict.fromkeys(names) if accepts(validator, json.dumps({name: 0}))]
    if not accepted:
        return reader.refuse(place, schema["type"], "none of its values can be the name of a member")
    return {"enum": accepted}


def _values(schema: CoreSchema, place: Place, expected: Sequence[Any]) -> Fragment:
    validator = SchemaValidator(dict(schema))
    values = [value for value in map(_plain, expected) if _is_scalar(value)]
    accepted = [value for value in values if all(accepts(validator, text) for text in _spellings(value))]
    if not accepted:
        reason = "none of its values can be written in JSON"
        if schema["type"] == "literal" and values and any(isinstance(one, Enum) for one in expected):
            reason = (
                "pydantic reads a member of an Enum in a Literal from JSON only if the Enum is a str or an int, too"
            )
        raise place.unwritable(schema["type"], reason)
    return {"enum": accepted}


def _combinations(kind: type | None, named: list[Any]) -> list[int]:
    """The combinations of a Flag's values that have no name, if there are not too many."""
    if kind is None or not issubclass(kind, Flag):
        return []
    flags = [flag.value for flag in kind]
    counts = range(len(flags) + 1) if len(flags) <= MAX_FLAGS else ()
    sums = [sum(some) for count in counts for some in itertools.combinations(flags, count)]
    return [value for value in sums if value not in named]


def _spellings(value: Any) -> list[str]:
    """The texts of a value in a language with plain integers."""
    text = json.dumps(value)
    return [text, str(int(value))] if isinstance(value, float) and value.is_integer() else [text]


def _plain(value: Any) -> Any:
    return _plain(value.value) if isinstance(value, Enum) else value


def _is_scalar(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | bool | int)


def accepts(validator: SchemaValidator, text: str) -> bool:
    """Whether a validator reads a text, in strict mode too."""
    try:
        validator.validate_json(text)
        validator.validate_json(text, strict=True)
    except (ValidationError, ValueError):
        return False
    return True
