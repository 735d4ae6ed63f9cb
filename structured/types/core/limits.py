"""Bounds, lengths and patterns that pydantic checks around a schema, since the schema has no option for them.

``Annotated[int | float, Field(gt=0)]`` is a union and a function around it. Here the limit goes to the parts of the schema that
have it as an option: both numbers get their own ``gt``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from draftline.structured.types.core.place import CoreSchema, Place, Reader

LIMITS: Final = {
    "greater_than_validator": "gt",
    "greater_than_or_equal_validator": "ge",
    "less_than_validator": "lt",
    "less_than_or_equal_validator": "le",
    "multiple_of_validator": "multiple_of",
    "min_length_validator": "min_length",
    "max_length_validator": "max_length",
    "max_digits_validator": "max_digits",
    "decimal_places_validator": "decimal_places",
}
"""Functions of pydantic that check one limit, which is their keyword."""

_BOUNDS: Final = frozenset(["gt", "ge", "lt", "le"])
_NUMBERS: Final = frozenset(["int", "float", "decimal"])
_MOMENTS: Final = frozenset(["date", "time", "datetime", "timedelta"])
_SIZED: Final = frozenset(
    ["str", "bytes", "list", "set", "frozenset", "tuple", "dict", "frozendict", "deque", "ordered-dict", "counter"]
)
_TEXT: Final = ("pattern", "strip_whitespace", "to_lower", "to_upper", "coerce_numbers_to_str", "ascii_only")
_OPTIONS: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(_BOUNDS, _NUMBERS | _MOMENTS),
    "multiple_of": _NUMBERS,
    "min_length": _SIZED,
    "max_length": _SIZED | {"url", "multi-host-url"},
    "max_digits": frozenset(["decimal"]),
    "decimal_places": frozenset(["decimal"]),
    **dict.fromkeys(_TEXT, frozenset(["str"])),
}
"""The types that have a limit."""

_WITHOUT: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(_BOUNDS, frozenset(["none", "str"])),
    "multiple_of": frozenset(["none", "str"]),
    "min_length": frozenset(["none", "int", "float", "bool"]),
    "max_length": frozenset(["none", "int", "float", "bool"]),
    **dict.fromkeys(_TEXT, frozenset(["none", "int", "float", "bool"])),
}
"""The types to which a limit cannot be applied, so that pydantic fails. A union can do without them."""

_INNER: Final = {
    "default": "schema",
    "nullable": "schema",
    "custom-error": "schema",
    "missing-sentinel": "schema",
    "json": "schema",
    "lax-or-strict": "strict_schema",
    "json-or-python": "json_schema",
}
"""Where the type of a value stands."""

_MIN: Final = frozenset(["lt", "le", "max_length", "max_digits", "decimal_places"])
"""Limits of which the smaller one is the tighter one."""


def text_limits(step: CoreSchema) -> dict[str, Any]:
    """The options of a string that pydantic checks in a step behind a schema; none if this is another step."""
    if step["type"] != "function-wrap":
        return {}
    name = getattr(step["function"]["function"], "__qualname__", "")
    if name != "apply_known_metadata.<locals>._apply_constraint_with_incompatibility_info":
        return {}
    return {key: value for key, value in step["schema"].items() if key in _TEXT}


class Limit:
    """One limit around a schema."""

    def __init__(self, name: str, value: Any, reader: Reader, place: Place, keeps: Callable[[Any, str], bool]) -> None:
        """``keeps`` tells whether a value has a limit after a function around its schema if it had it before."""
        self.name, self.value = name, value
        self._reader, self._place, self._keeps = reader, place, keeps

    def within(self, schema: CoreSchema) -> CoreSchema | None:
        """The schema with this limit on its parts; None if they cannot have it."""
        schema = {key: value for key, value in self._reader.resolve(schema).items() if key != "ref"}
        kind = schema["type"]
        if kind in _OPTIONS[self.name]:
            return self._on(schema)
        if kind == "union":
            return self._on_union(schema)
        if kind == "literal":
            texts = self.name in _TEXT and all(type(value) is str for value in schema["expected"])
            return {"type": "chain", "steps": [schema, {"type": "str", self.name: self.value}]} if texts else None
        if kind == "chain":
            *steps, last = schema["steps"]
            inner = self.within(last)
            return None if inner is None else {**schema, "steps": [*steps, inner]}
        key = _INNER.get(kind)
        if (
            kind.startswith("function-")
            and "schema" in schema
            and self._keeps(schema["function"]["function"], self.name)
        ):
            key = "schema"
        if key is None or key not in schema:
            return None
        inner = self.within(schema[key])
        if inner is None or kind == "nullable":
            return inner
        return {**schema, key: inner}

    def _on_union(self, schema: CoreSchema) -> CoreSchema | None:
        choices = [choice[0] if isinstance(choice, tuple) else choice for choice in schema["choices"]]
        kinds = [self._reader.resolve(choice)["type"] for choice in choices]
        without = _WITHOUT.get(self.name, frozenset())
        kept = [choice for choice, kind in zip(choices, kinds, strict=True) if kind not in without]
        if len(kept) < len(choices):
            # A text of what is kept must not be read as what is left out.
            plain = {"int", "float"} if "str" in kinds and "str" in without else {"str", "list", "dict", "tuple", "set"}
            ordered = schema.get("mode") == "left_to_right"
            if ordered or not kept or not {self._reader.resolve(one)["type"] for one in kept} <= plain:
                return None
        limited = [self.within(choice) for choice in kept]
        return None if None in limited else {**schema, "choices": limited}

    def _on(self, schema: dict[str, Any]) -> CoreSchema | None:
        kind, name, value = schema["type"], self.name, self.value
        if kind in _NUMBERS and name in (*_BOUNDS, "multiple_of"):
            value = _exact(kind, name, value)
            if value is None:
                return None
        elif kind in _MOMENTS and type(value).__name__ != kind:
            return None
        elif name in ("pattern", "min_length", "max_length") and self._changes_letters(schema):
            return None  # pydantic looks at the text with other letters, which may be more
        known = schema.get(name)
        if known is None:
            return {**schema, name: value}
        if name in (*_TEXT, "multiple_of"):
            return schema if known == value else {"type": "chain", "steps": [schema, {"type": kind, name: value}]}
        return {**schema, name: min(known, value) if name in _MIN else max(known, value)}

    def _changes_letters(self, schema: CoreSchema) -> bool:
        cases = (("to_lower", "str_to_lower"), ("to_upper", "str_to_upper"))
        return schema["type"] == "str" and any(self._place.option(schema, *case) for case in cases)


def _exact(kind: str, name: str, value: Any) -> Any:
    """A bound of numbers as the type's own option has the same meaning; None if there is none.

    Python compares and divides exactly. pydantic's own options take a bound to the type first, and divide with a tolerance.
    """
    if not isinstance(value, int | float | Decimal) or not math.isfinite(value):
        return None
    exact = Fraction(value)
    if name == "multiple_of":
        if kind == "decimal" and not isinstance(value, float):
            return value
        return exact.numerator if exact.denominator == 1 else None
    if kind == "int":
        return {"gt": math.floor, "ge": math.ceil, "lt": math.ceil, "le": math.floor}[name](exact)
    if kind == "float":
        return float(value) if Fraction(float(value)) == exact else None
    return value
