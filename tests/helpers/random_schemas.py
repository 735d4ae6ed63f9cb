"""Random schemas and values that are often just inside or just outside of them, drawn by hypothesis."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import strategies as st

_NAMES = ["a", "b", "id", "na me", 'q"t', "é", "x1", "x2"]
_STRINGS = ["", "a", "ab", "abc", "foo", "12", "é", "😀", 'q"', "a\nb", "2024-02-29", "\\", "x" * 12, "\x7f", "\u0001"]
_NUMBERS: list[Any] = [0, 1, -1, 2, 3, 5, 7, 10, 12, 49, 100, 1.5, 0.1, -0.5, 2.0, 1e20, -3, 2.25, 1e-7, -0.0, 10**18]
_PATTERNS = [
    "^a",
    "b$",
    "^[a-z]+$",
    "o",
    "^\\d{2}$",
    "^x\\d$",
    "^(foo|bar)$",
    "\\s",
    "^[^a]*$",
    "^.{2,3}$",
    "^(?!a)",
    "^(?:(?!oo)[a-z])*$",
]
_FORMATS = ["date", "ipv4", "uuid", "email", "unknown"]

scalars = st.sampled_from([None, True, False, *_NUMBERS, *_STRINGS])


def values(depth: int = 2) -> st.SearchStrategy[Any]:
    """Any JSON value of a small vocabulary."""
    if depth == 0:
        return scalars
    inner = values(depth - 1)
    return st.one_of(
        scalars,
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
    )


@st.composite
def _numeric(draw: st.DrawFn) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": draw(st.sampled_from(["integer", "number", ["integer", "null"]]))}
    bound = st.sampled_from([0, 1, -1, 2.5, 10, -7, 99, 0.25])
    for keyword in draw(st.lists(st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]))):
        schema[keyword] = draw(bound)
    if draw(st.integers(0, 3)) == 0:
        schema["multipleOf"] = draw(st.sampled_from([1, 2, 5, 0.5, 0.25]))
    return schema


@st.composite
def _textual(draw: st.DrawFn) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if draw(st.booleans()):
        schema["minLength"] = draw(st.integers(0, 3))
    if draw(st.booleans()):
        schema["maxLength"] = draw(st.integers(0, 4))
    if draw(st.booleans()):
        schema["pattern"] = draw(st.sampled_from(_PATTERNS))
    if draw(st.integers(0, 4)) == 0:
        schema["format"] = draw(st.sampled_from(_FORMATS))
    return schema


@st.composite
def _array(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    if draw(st.booleans()):
        schema["items"] = draw(inner)
    if draw(st.integers(0, 2)) == 0:
        schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
    if draw(st.booleans()):
        schema["minItems"] = draw(st.integers(0, 3))
    if draw(st.booleans()):
        schema["maxItems"] = draw(st.integers(0, 4))
    if draw(st.integers(0, 4)) == 0:
        schema["contains"] = draw(inner)
        if draw(st.booleans()):
            schema["minContains"] = draw(st.integers(0, 2))
        if draw(st.booleans()):
            schema["maxContains"] = draw(st.integers(0, 2))
    if draw(st.integers(0, 5)) == 0:
        schema["items"] = {"enum": draw(st.lists(scalars, min_size=1, max_size=4))}
        schema["uniqueItems"] = True
    if draw(st.integers(0, 5)) == 0:
        schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    if draw(st.integers(0, 7)) == 0:
        schema["unevaluatedItems"] = draw(st.one_of(st.just(False), inner))
        schema[draw(st.sampled_from(["allOf", "anyOf"]))] = draw(st.lists(inner, min_size=1, max_size=2))
    return schema


@st.composite
def _object(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    names = st.sampled_from(_NAMES)
    if draw(st.booleans()) or draw(st.booleans()):
        schema["properties"] = draw(st.dictionaries(names, inner, max_size=4))
    if draw(st.booleans()):
        schema["required"] = draw(st.lists(names, max_size=3, unique=True))
    choice = draw(st.integers(0, 4))
    if choice <= 2:
        schema["additionalProperties"] = False if choice else draw(inner)
    if draw(st.integers(0, 3)) == 0:
        schema["patternProperties"] = draw(st.dictionaries(st.sampled_from(_PATTERNS), inner, max_size=2))
    if draw(st.integers(0, 4)) == 0:
        schema["minProperties"] = draw(st.integers(0, 3))
    if draw(st.integers(0, 4)) == 0:
        schema["maxProperties"] = draw(st.integers(0, 3))
    if draw(st.integers(0, 6)) == 0:
        schema["propertyNames"] = draw(_textual())
    if draw(st.integers(0, 6)) == 0:
        schema["dependentRequired"] = {draw(names): draw(st.lists(names, max_size=2, unique=True))}
    if draw(st.integers(0, 8)) == 0:
        schema["dependentSchemas"] = {draw(names): draw(inner)}
    if draw(st.integers(0, 5)) == 0:
        additional = schema.pop("additionalProperties", None)
        schema["unevaluatedProperties"] = False if additional is False else draw(inner)
        keyword = draw(st.sampled_from(["allOf", "anyOf", "oneOf"]))
        schema[keyword] = draw(st.lists(st.one_of(_object(inner), inner), min_size=1, max_size=3))
    return schema


@st.composite
def _combined(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    kind = draw(st.sampled_from(["allOf", "anyOf", "oneOf", "not", "if", "enum", "const"]))
    if kind == "not":
        return {"not": draw(inner)}
    if kind == "if":
        parts = draw(st.sampled_from([["then"], ["else"], ["then", "else"]]))
        return {"if": draw(inner), **{part: draw(inner) for part in parts}}
    if kind == "enum":
        return {"enum": draw(st.lists(values(), min_size=1, max_size=4))}
    if kind == "const":
        return {"const": draw(values())}
    schema = {kind: draw(st.lists(inner, min_size=1, max_size=3))}
    if draw(st.booleans()):
        extra = draw(inner)
        if isinstance(extra, dict):
            schema = {**extra, **schema}
    return schema


def schemas(depth: int = 2) -> st.SearchStrategy[Any]:
    """Schemas of draft 2020-12."""
    leaves = st.one_of(
        _numeric(),
        _textual(),
        st.sampled_from([True, {}, {"type": "boolean"}, {"type": "null"}, {"enum": ["a", "b", 1, None]}]),
    )
    if depth == 0:
        return leaves
    inner = schemas(depth - 1)
    return st.one_of(leaves, _array(inner), _object(inner), _object(inner), _combined(inner))


_NEGATING = ("not", "oneOf", "if", "contains", "unevaluatedProperties", "unevaluatedItems")


def may_leave_out(schema: Any, value: Any) -> bool:
    """Whether a valid value may have no text.

    That is a string that violates a format, but not for every validator, or equal items that an alternative forbids.
    """
    written = json.dumps(schema)
    negates = any(f'"{keyword}"' in written for keyword in _NEGATING)
    alternates = negates or '"anyOf"' in written
    return ('"format"' in written and negates) or ('"uniqueItems"' in written and alternates and _repeats(value))


def _repeats(value: Any) -> bool:
    """Whether an array in a value has equal items."""
    if isinstance(value, dict):
        return any(map(_repeats, value.values()))
    if not isinstance(value, list):
        return False
    return any(item in value[:index] for index, item in enumerate(value)) or any(map(_repeats, value))


def guesses(schema: Any, source: random.Random, depth: int = 4) -> Any:
    """A value that tries to match, without much thought."""
    if not isinstance(schema, dict) or depth == 0:
        return source.choice([None, True, 1, "a", [], {}, [1, "a"], {"a": 1}])
    for keyword in ("const", "enum"):
        if keyword in schema and source.random() < 0.9:
            return source.choice(schema["enum"]) if keyword == "enum" else schema["const"]
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema and source.random() < 0.6:
            return guesses(source.choice(schema[keyword]), source, depth)
    for keyword in ("then", "else", "if", "not"):
        if keyword in schema and source.random() < 0.5:
            return guesses(schema[keyword], source, depth)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = source.choice(kind)
    if kind is None:
        kind = (
            "object" if "properties" in schema else "array" if "items" in schema else source.choice(["string", "null"])
        )
    if kind == "object":
        return _guess_object(schema, source, depth)
    if kind == "array":
        count = source.randrange(max(0, schema.get("minItems", 0)), 5) if source.random() < 0.8 else 0
        prefix = schema.get("prefixItems", [])
        kinds = [schema.get("items", True), schema.get("contains", True)]
        return [
            guesses(prefix[index] if index < len(prefix) else source.choice(kinds), source, depth - 1)
            for index in range(count)
        ]
    if kind == "string":
        return source.choice(_STRINGS)
    if kind in ("integer", "number"):
        return source.choice(_NUMBERS)
    return {"boolean": True, "null": None}.get(kind, 1)


def _guess_object(schema: dict[str, Any], source: random.Random, depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    names = [name for name in properties if source.random() < 0.7]
    names += [name for name in schema.get("required", []) if name not in names and source.random() < 0.95]
    if source.random() < 0.4:
        names.append(source.choice(_NAMES + _STRINGS))
    source.shuffle(names)
    additional = schema.get("additionalProperties", True)
    return {name: guesses(properties.get(name, additional), source, depth - 1) for name in dict.fromkeys(names)}


def serialisations(value: Any) -> list[str]:
    """The texts that a strict, freely spaced language must accept for a valid value."""
    return [
        json.dumps(value, separators=(",", ":")),
        json.dumps(value),
        json.dumps(value, indent=2),
        json.dumps(value, indent=4, ensure_ascii=False),
    ]
