"""The reasons for which parts of a schema are refused, and negations that need none."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from walk import Walker

from draftline.structured.errors import UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language

_COUNTED = {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "refusal"),
    [
        (
            {"type": "object", "maxProperties": 70_000, "additionalProperties": {"type": "integer"}},
            "/maxProperties: maxProperties: it is beyond 65535",
        ),
        (
            {"type": "object", "maxProperties": 3, "not": {"patternProperties": {"^a": {"type": "integer"}}}},
            "/maxProperties: maxProperties: it cannot be combined with unnamed members that another keyword requires",
        ),
        (
            {"type": "array", "contains": _COUNTED, "minContains": 100, "maxContains": 2_000},
            "/contains: contains: its counts are too large",
        ),
        (
            {"type": "array", "items": {"type": "string"}, "not": {"uniqueItems": True}},
            (
                "/not/uniqueItems: uniqueItems: arrays whose items repeat have no exact form, and not, oneOf or if leaves no"
                " other values"
            ),
        ),
        (
            {
                "type": "array",
                "uniqueItems": True,
                "minItems": 5,
                "items": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 1},
            },
            (
                "/uniqueItems: uniqueItems: so many items cannot be unique, or which ones are left depends on the items"
                " before"
            ),
        ),
        ({"allOf": [{"$ref": "#"}]}, "(root): $ref: it refers to itself without a value in between"),
        (
            {"not": {"type": "number", "format": "double"}},
            "/not/format: format: its negation has no exact form, and not, oneOf or if needs one",
        ),
        (
            {
                "type": "object",
                "minProperties": 2,
                "patternProperties": {"^b": {"type": "integer"}},
                "additionalProperties": False,
            },
            (
                "/minProperties: minProperties: different names cannot be enforced for unnamed members whose names are"
                " restricted"
            ),
        ),
        ({"$ref": "#x"}, "/$ref: $ref: there is no anchor 'x'"),
    ],
)
def test_a_refusal_names_the_keyword_and_the_reason(schema: Any, refusal: str) -> None:
    with pytest.raises(UnsupportedConstraintError) as caught:
        json_schema_language(json.dumps(schema))
    assert str(caught.value) == refusal


_VALUES: list[Any] = [
    None,
    *(1, 2, 3, 4, 6, "a", ""),
    *([], [1], [2], ["a"], [1, 1], [1, {"a": 2}], [1, {"a": 3}], [1, {"a": 2, "b": 0}]),
    *({}, {"a": 1}, {"a": 2}, {"a": "a"}, {"b": 1}, {"a": 2, "b": 0}, {"a": 2, "b": "b"}, {"c": 1}, {"a": 1, "c": 1}),
]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["array", "object"], "not": {"const": [1]}},
        {"type": ["array", "object"], "not": {"enum": [[1, {"a": 2}], {"a": 2}, []]}},
        {"type": "integer", "not": {"multipleOf": 3}},
        {"type": "object", "not": {"maxProperties": 1}},
        {"type": "object", "not": {"additionalProperties": {"type": "integer"}}},
        {"type": "object", "not": {"patternProperties": {"^[ab]$": {"type": "integer"}}}},
        {"type": "object", "not": {"propertyNames": {"enum": ["a", "b"]}}},
        {"type": "object", "propertyNames": {"enum": ["a", "c"]}, "additionalProperties": {"type": "integer"}},
        {"type": "object", "propertyNames": {"anyOf": [{"enum": ["a"]}, {"pattern": "^[bc]"}]}},
        {"type": "object", "not": {"properties": {"a": {}}, "unevaluatedProperties": {"type": "string"}}},
        {"type": "object", "dependentSchemas": {"a": {"properties": {"b": {}}}}, "unevaluatedProperties": False},
        {"type": "array", "not": {"prefixItems": [{"type": "integer"}], "unevaluatedItems": {"type": "string"}}},
        {"type": "array", "contains": _COUNTED, "not": {"contains": {"const": 2}, "minContains": 1}},
    ],
)
def test_negations_and_names_allow_what_validators_allow(schema: Any) -> None:
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact", integers="plain"))
    validator = jsonschema_rs.validator_for(schema)
    found = [walker.accepts(json.dumps(value, separators=(",", ":"))) for value in _VALUES]
    assert found == [validator.is_valid(value) for value in _VALUES]
    assert len(set(found)) == 2
