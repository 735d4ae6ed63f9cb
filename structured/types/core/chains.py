"""Chains: the steps that read a value one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import Any, Final

from draftline.structured.types.core import functions
from draftline.structured.types.core.collections import SCALARS
from draftline.structured.types.core.limits import text_limits
from draftline.structured.types.core.place import CoreSchema, Fragment, Place, Reader


def read_chain(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Steps one after the other. Functions of users among them are validators in Python."""
    fragment = _read_steps(reader, _steps_of_texts(reader, schema["steps"], place), place)
    return functions.as_stated(schema, fragment) if _has_code(schema) else fragment


def _read_steps(reader: Reader, steps: Sequence[CoreSchema], place: Place) -> Fragment:
    """Steps that read JSON. Those behind the first must accept the text as well."""
    first, *later = steps
    limits = [text_limits(step) for step in later]
    if all(limits):
        return functions.read_limited(reader, first, place, [pair for each in limits for pair in each.items()])
    # Steps behind a function in Python read what it returns.
    last = next((index for index, one in enumerate(steps) if functions.returns_another(one)), len(later))
    later = later[:last]
    if reader.resolve(first)["type"] == "any" and any(_is_hashable_check(one) for one in later):
        return SCALARS
    if not all(_is_native(one) for one in later):
        # The first step has read the JSON; to the others, in strict mode, a date's text is no date.
        reason = "this pydantic rejects all of its values in strict mode"
        if place.config.get("strict"):
            return reader.refuse(place, "strict", reason)
        reader.unenforced(place, "strict", reason)
    fragments = [reader.read(one, place) for one in (first, *later) if one is first or one["type"] != "is-instance"]
    return fragments[0] if len(fragments) == 1 else {"allOf": fragments}


def read_json_or_python(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """The part for JSON. A class with a chain of its own may state its strings beside it."""
    json = schema["json_schema"]
    fragment = reader.read(json, place)
    return functions.as_stated(schema, fragment) if _has_code(json) else fragment


def _has_code(schema: CoreSchema) -> bool:
    return schema["type"] == "chain" and any(map(functions.is_code, schema["steps"]))


def _steps_of_texts(reader: Reader, steps: Sequence[CoreSchema], place: Place) -> Sequence[CoreSchema]:
    """The steps that say which texts a chain reads: those behind its leading functions, up to the next function.

    Functions in Python are validators before or behind these steps. Further steps read what a function returns.
    """
    code = list(filter(functions.is_code, steps))
    if not code or len(code) == len(steps):
        return steps
    for one in code:
        functions.note_code(reader, one, place)
    behind = dropwhile(functions.is_code, steps)
    return list(takewhile(lambda one: not functions.is_code(one), behind))


_NATIVE: Final = frozenset(
    ["any", "none", "bool", "int", "float", "str", "list", "dict", "nullable", "union", "default"]
)


def _is_native(part: Any) -> bool:
    """Whether all types in a schema are those of JSON."""
    if isinstance(part, list | tuple):
        return all(_is_native(one) for one in part)
    if not isinstance(part, Mapping):
        return True
    kind = str(part.get("type", "any"))
    known = kind in _NATIVE or kind.startswith("function-") or kind == "no-info"
    inner = ("schema", "items_schema", "keys_schema", "values_schema", "choices")
    return known and all(_is_native(part[key]) for key in inner if key in part)


def _is_hashable_check(schema: CoreSchema) -> bool:
    return schema["type"] == "is-instance" and getattr(schema["cls"], "__name__", "") == "Hashable"
