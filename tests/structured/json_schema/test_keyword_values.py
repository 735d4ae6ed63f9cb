"""A malformed value of a keyword makes a schema invalid in the drafts that know the keyword, and in no other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema import json_schema_language

DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
COUNTS = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"]
EVERY = list(DRAFTS)
MALFORMED: list[tuple[str, Any, list[int]]] = [
    *((keyword, None, EVERY) for keyword in [*COUNTS, "minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"]),
    *((keyword, 1.5, EVERY) for keyword in COUNTS),
    *((keyword, 10, [4]) for keyword in ("exclusiveMinimum", "exclusiveMaximum")),
    *((keyword, True, [6, 7, 2019, 2020]) for keyword in ("exclusiveMinimum", "exclusiveMaximum")),
    *((keyword, value, [2019, 2020]) for keyword in ("minContains", "maxContains") for value in (None, "1", -1)),
    *(("uniqueItems", value, EVERY) for value in ("true", 1, None)),
    *(("prefixItems", value, [2020]) for value in ({}, True, [], [1])),
    *((keyword, value, [7, 2019, 2020]) for keyword in ("if", "then", "else") for value in (1, None, [])),
    *(("$defs", value, [2019, 2020]) for value in (1, [], {"a": 1})),
    ("definitions", 1, EVERY),
    ("additionalItems", 5, [4, 6, 7, 2019]),
    ("multipleOf", 0, EVERY),
    ("pattern", None, EVERY),
    *(("required", value, EVERY) for value in ("a", [1], ["a", "a"])),
    *(("dependentSchemas", value, [2019, 2020]) for value in ([], {"a": ["b"]})),
    *(("dependentRequired", {"a": value}, [2019, 2020]) for value in ({"required": ["b"]}, True, [1], ["b", "b"], "b")),
    *(("dependencies", {"a": value}, EVERY) for value in ([1], ["b", "b"], "b")),
]  # fmt: skip


@pytest.mark.parametrize(("keyword", "value", "drafts"), MALFORMED, ids=str)
def test_a_malformed_value_is_refused_by_keyword_and_place(keyword: str, value: Any, drafts: list[int]) -> None:
    for draft, uri in DRAFTS.items():
        schema = json.dumps({"$schema": uri, "properties": {"x/y": {"items": True, keyword: value}}})
        if draft in drafts:
            with pytest.raises(InvalidConstraintError, match=rf"^/properties/x~1y/{keyword.replace('$', '.')}[/:]"):
                json_schema_language(schema)
        else:
            assert not json_schema_language(schema).unenforced


@pytest.mark.parametrize(
    ("draft", "schema"),
    [
        (4, {"maximum": 1, "exclusiveMaximum": True, "minimum": 0, "exclusiveMinimum": False}),
        (7, {"dependencies": {"a": ["b"], "b": {"required": ["c"]}, "c": True}, "items": [True], "additionalItems": False}),
        (2020, {"dependentRequired": {"a": [], "b": ["a"]}, "dependentSchemas": {"a": {"required": ["b"]}, "b": True}}),
        (2020, {"minLength": 1.0, "maxItems": 2e0, "uniqueItems": False, "minContains": 0, "then": False, "$defs": {}}),
    ],
)  # fmt: skip
def test_well_formed_values_are_not(draft: int, schema: dict[str, Any]) -> None:
    assert not json_schema_language(json.dumps({"$schema": DRAFTS[draft], **schema})).unenforced


@pytest.mark.parametrize(
    ("draft", "schema", "ignored"),
    [
        (7, {"prefixItems": [{"type": "null"}]}, {"/prefixItems": 2020}),
        (7, {"properties": {"a": {"unevaluatedProperties": False}}}, {"/properties/a/unevaluatedProperties": 2019}),
        (6, {"if": {"const": 1}, "then": False, "$defs": {}}, {"/if": 7, "/then": 7}),
        (4, {"const": None, "propertyNames": {"maxLength": 3}, "contentEncoding": "x"}, {"/const": 6, "/propertyNames": 6}),
        (7, {"items": {"$recursiveRef": "#"}}, {"/items/$recursiveRef": 2019}),
        (2019, {"items": {"$dynamicRef": "#node"}}, {"/items/$dynamicRef": 2020}),
        (2020, {"items": {"$recursiveRef": "#"}}, {"/items/$recursiveRef": 2019}),
        (2019, {"prefixItems": "x", "if": True, "minContains": 1}, {}),
        (2020, {"additionalItems": False, "items": True, "id": "x"}, {}),
    ],
)  # fmt: skip
def test_keywords_that_only_other_drafts_have_are_listed(
    draft: int, schema: dict[str, Any], ignored: dict[str, int]
) -> None:
    language = json_schema_language(json.dumps({"$schema": DRAFTS[draft], **schema}))
    assert {one.pointer: one.reason.partition('"$schema": ')[2] for one in language.unenforced} == {
        pointer: f'"{DRAFTS[other].rstrip("#")}"' for pointer, other in ignored.items()
    }


@pytest.mark.parametrize("types", [5, None, True, {"null": 1}, "nullable"])
def test_a_malformed_type_beside_nullable_is_refused(types: object) -> None:
    with pytest.raises(InvalidConstraintError, match=r"^/type: "):
        json_schema_language(json.dumps({"type": types, "nullable": True}))


def test_nullable_is_listed_where_it_says_more_than_the_types() -> None:
    members = {"a": {"type": "string", "nullable": True}, "b": {"allOf": [{"type": "object"}], "nullable": True}}
    referring = {"e": {"$ref": "#/definitions/e", "nullable": True}}
    silent = {"c": {"type": "string", "nullable": False}, "d": {"type": ["string", "null"], "nullable": True}}
    for uri in DRAFTS.values():
        language = json_schema_language(json.dumps({"$schema": uri, "properties": {**members, **silent}}))
        assert [one.pointer for one in language.unenforced] == ["/properties/a/nullable", "/properties/b/nullable"]
        assert "OpenAPI 3.0" in language.unenforced[0].reason
    language = json_schema_language(json.dumps({"properties": referring, "definitions": {"e": {"type": "object"}}}))
    assert [one.pointer for one in language.unenforced] == ["/properties/e/nullable"]
    endless = {"type": "object", "properties": {"next": {"$ref": "#", "nullable": True}}, "required": ["next"]}
    with pytest.raises(
        InvalidConstraintError, match=r"^no value matches the schema; /properties/next/nullable: nullable: only"
    ):
        json_schema_language(json.dumps(endless))


def test_keywords_of_draft_3_and_of_ajv_are_listed() -> None:
    day = {"type": "string", "format": "date", "formatMinimum": "2020-01-01"}
    schema = {"properties": {"day": day, "even": {"divisibleBy": 2}, "extends": {"type": "string"}}, "disallow": "null"}
    for uri in DRAFTS.values():
        found = json_schema_language(json.dumps({"$schema": uri, **schema})).unenforced
        assert {one.pointer for one in found} == {
            "/properties/day/formatMinimum",
            "/properties/even/divisibleBy",
            "/disallow",
        }
