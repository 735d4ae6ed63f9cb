"""Schemas in several documents, as one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from walk import Walker

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.json_schema.bundling import bundled

HOST = "https://schemas.test/"
DRAFT4 = "http://json-schema.org/draft-04/schema#"
DRAFT2020 = "https://json-schema.org/draft/2020-12/schema"
DRAFT7 = "http://json-schema.org/draft-07/schema#"


def accepts(schema: Any, documents: dict[str, Any], *texts: str) -> list[bool]:
    whole = bundled(json.dumps(schema), {HOST + name: json.dumps(document) for name, document in documents.items()})
    walker = Walker.of_language(json_schema_language(whole))
    return [walker.accepts(text) for text in texts]


@pytest.mark.parametrize("draft", [None, DRAFT4, DRAFT7])
def test_a_reference_finds_another_document_by_its_uri(draft: str | None) -> None:
    schema = {"$ref": f"{HOST}small.json"} | ({"$schema": draft} if draft else {})
    assert accepts(schema, {"small.json": {"maximum": 3, "type": "integer"}}, "3", "4") == [True, False]


def test_documents_refer_to_each_other_relative_to_their_own_uri() -> None:
    documents = {
        "a/list.json": {"type": "array", "items": {"$ref": "item.json#/$defs/item"}},
        "a/item.json": {"$defs": {"item": {"$ref": "../b/name.json"}}},
        "b/name.json": {"enum": ["x"]},
        "other.json": False,
    }
    assert accepts({"$ref": f"{HOST}a/list.json"}, documents, '["x"]', '["y"]') == [True, False]


def test_a_document_with_another_name_than_its_uri_keeps_both() -> None:
    documents = {"found.json": {"$id": f"{HOST}named.json", "$defs": {"n": {"const": 1}}, "$ref": "#/$defs/n"}}
    schema = {"prefixItems": [{"$ref": f"{HOST}found.json"}, {"$ref": f"{HOST}found.json"}], "minItems": 2}
    assert accepts({**schema, "type": "array"}, documents, "[1,1]", "[1,2]") == [True, False]


@pytest.mark.parametrize("fragment", ["#/definitions/n", "#n"])
def test_references_lead_into_a_document_by_any_of_its_names(fragment: str) -> None:
    named = {
        "$id": f"{HOST}named.json",
        "definitions": {"n": {"$ref": "#/definitions/m"}, "m": {"$id": "#n", "const": 1}},
    }
    schema = {
        "$schema": DRAFT7,
        "items": [
            {"$ref": f"{HOST}found.json{fragment}"},
            {"$ref": f"{HOST}named.json{fragment}"},
            {"$ref": f"{HOST}b.json"},
        ],
        "minItems": 3,
        "type": "array",
    }
    documents = {"found.json": named, "named.json": named, "b.json": {"not": {"$ref": f"found.json{fragment}"}}}
    assert accepts(schema, documents, "[1,1,2]", "[1,2,2]", "[2,1,2]", "[1,1,1]") == [True, False, False, False]


def test_a_lone_reference_leads_into_its_document() -> None:
    documents = {
        "a.json": {"$ref": "#/definitions/n", "definitions": {"n": {"const": 1}, "m": {"const": 2}}, "minimum": 5}
    }
    schema = {
        "$schema": DRAFT7,
        "items": [{"$ref": f"{HOST}a.json"}, {"$ref": f"{HOST}a.json#/definitions/m"}],
        "minItems": 2,
        "type": "array",
    }
    assert accepts(schema, documents, "[1,2]", "[1,1]") == [True, False]


@pytest.mark.parametrize("draft", [DRAFT4, DRAFT7, DRAFT2020])
@pytest.mark.parametrize(
    ("document", "valid", "invalid"),
    [
        ({"$schema": DRAFT4, "type": "integer", "minimum": 3, "exclusiveMinimum": True}, "4", "3"),
        ({"$schema": DRAFT7, "$ref": "#/definitions/n", "definitions": {"n": {"const": 1}}, "minimum": 5}, "1", "5"),
        ({"$schema": DRAFT2020, "$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}, "minimum": 5}, "5", "4"),
        ({"$schema": DRAFT2020, "type": "array", "prefixItems": [{"const": 1}], "items": False}, "[1]", "[2]"),
    ],
)
def test_documents_keep_their_drafts(draft: str, document: dict[str, Any], valid: str, invalid: str) -> None:
    schema = {"$schema": draft, "allOf": [{"$ref": f"{HOST}a.json"}]}
    assert accepts(schema, {"a.json": document}, valid, invalid) == [True, False]


def test_a_boolean_and_a_lone_reference_are_documents() -> None:
    documents = {
        "any.json": True,
        "alias.json": {"$schema": DRAFT7, "$ref": f"{HOST}one.json"},
        "one.json": {"const": 1},
    }
    properties = {"a": {"$ref": f"{HOST}any.json"}, "b": {"$ref": f"{HOST}alias.json"}}
    schema = {"$schema": DRAFT7, "type": "object", "properties": properties, "additionalProperties": False}
    assert accepts(schema, documents, '{"a":[],"b":1}', '{"b":2}') == [True, False]


def test_own_definitions_stay() -> None:
    schema = {
        "$defs": {f"{HOST}small.json": {"const": "own"}},
        "anyOf": [{"$ref": f"#/$defs/{HOST.replace('/', '~1')}small.json"}, {"$ref": f"{HOST}small.json"}],
    }
    assert accepts(schema, {"small.json": {"const": "other"}}, '"own"', '"other"', '"none"') == [True, True, False]


def test_a_schema_that_needs_no_other_document_stays_as_it_is() -> None:
    schema = {"type": "number", "multipleOf": 0.01, "$ref": "#/$defs/a", "$defs": {"a": {"minimum": 1}}}
    assert json.loads(bundled(json.dumps(schema), {HOST: "true"})) == schema


@pytest.mark.parametrize(
    ("schema", "document", "problem"),
    [
        ({"$ref": HOST}, "3", "a schema is an object or a boolean"),
        ({"$ref": HOST, "$defs": []}, "true", r"/\$defs: has to be an object"),
        ({"$ref": HOST}, '{"minimum": 0.1000000000000000000001}', "64-bit float"),
    ],
)
def test_what_cannot_be_bundled_is_refused(schema: Any, document: str, problem: str) -> None:
    with pytest.raises(InvalidConstraintError, match=problem):
        bundled(json.dumps(schema), {HOST: document})
