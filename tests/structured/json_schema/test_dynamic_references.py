"""References whose target depends on the schemas through which evaluation has come."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from walk import Walker

from draftline.structured.json_schema import json_schema_language

VALUES = [
    "1", '"a"', "null", "[]", "[1]", '["a"]', "[[1]]", '{"list":[1]}', '{"list":["a"]}', '{"list":[1,"a"]}',
    '{"next":{"next":1}}', '{"next":{"next":"a"}}', '{"next":{"other":1}}',
]  # fmt: skip
LIST = {
    "$id": "list",
    "properties": {"list": {"items": {"$dynamicRef": "#item"}}},
    "$defs": {"any": {"$dynamicAnchor": "item"}},
}


def lists_of(kind: str) -> dict[str, Any]:
    return {"$id": kind, "$ref": "list", "$defs": {"item": {"$dynamicAnchor": "item", "type": kind}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "http://a/", "anyOf": [{"$ref": "integer"}, {"$ref": "string"}], "$defs": {"1": LIST, "2": lists_of("integer"), "3": lists_of("string")}},
        {"$id": "http://a/", "allOf": [{"$ref": "list"}, {"$ref": "string"}], "$defs": {"1": LIST, "2": lists_of("string")}},
        {"$id": "http://a/", "not": {"$ref": "integer"}, "$defs": {"1": LIST, "2": lists_of("integer")}},
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "$id": "http://a/closed",
            "$recursiveAnchor": True,
            "$ref": "open",
            "unevaluatedProperties": False,
            "$defs": {
                "open": {"$id": "open", "$recursiveAnchor": True, "properties": {"next": {"$recursiveRef": "#"}}},
            },
        },
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "$id": "http://a/outer",
            "type": ["object", "integer"],
            "properties": {"next": {"$ref": "open"}},
            "$defs": {"open": {"$id": "open", "$recursiveAnchor": True, "properties": {"next": {"$recursiveRef": "#"}}}},
        },
    ],
    ids=["either", "both", "negated", "recursive", "recursive without an outer anchor"],
)  # fmt: skip
def test_a_dynamic_reference_means_the_outermost_schema_with_its_anchor(schema: Any) -> None:
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact"))
    validator = jsonschema_rs.validator_for(schema)
    found = [walker.accepts(value) for value in VALUES]
    assert found == [validator.is_valid(json.loads(value)) for value in VALUES]
    assert len(set(found)) == 2


@pytest.mark.parametrize("draft", ["2019-09", "2020-12"])
def test_a_metaschema_needs_no_network(draft: str) -> None:
    uri = f"https://json-schema.org/draft/{draft}/schema"
    walker = Walker.of_language(json_schema_language(json.dumps({"$schema": uri, "items": {"$ref": uri}})))
    validator = jsonschema_rs.validator_for({"$schema": uri, "items": {"$ref": uri}})
    inner: list[Any] = [
        True,
        {"minLength": 1},
        {"minLength": -1},
        {"type": "integer"},
        {"type": "int"},
        {"items": {"type": 1}},
        7,
    ]
    for value in [[one] for one in [*inner, *({"properties": {"a": {"not": one}}} for one in inner)]]:
        assert walker.accepts(json.dumps(value)) == validator.is_valid(value), value


def test_a_schema_of_schemas_may_extend_the_metaschema() -> None:
    uri = "https://json-schema.org/draft/2020-12/schema"
    schema = {
        "$id": "http://a/",
        "$dynamicAnchor": "meta",
        "$ref": uri,
        "properties": {"description": {"minLength": 3}},
    }
    walker = Walker.of_language(json_schema_language(json.dumps(schema)))
    assert walker.accepts('{"properties": {"a": {"description": "abc"}}}')
    assert not walker.accepts('{"properties": {"a": {"description": "ab"}}}')
    assert not walker.accepts('{"properties": {"a": {"title": 1}}}')
