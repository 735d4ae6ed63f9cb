"""`$schema` in a part of a schema: it selects the draft of this part."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from walk import Walker

from draftline.structured.json_schema import json_schema_language

DRAFT4 = "http://json-schema.org/draft-04/schema#"
DRAFT7 = "http://json-schema.org/draft-07/schema#"
DRAFT2020 = "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    ("root", "part", "valid", "invalid"),
    [
        (DRAFT2020, {"$schema": DRAFT7, "prefixItems": [{"type": "string"}]}, [1], None),
        (DRAFT7, {"$schema": DRAFT2020, "prefixItems": [{"type": "string"}]}, ["a"], [1]),
        (DRAFT7, {"$schema": DRAFT2020, "items": {"prefixItems": [{"type": "string"}]}}, [["a"]], [[1]]),
        (DRAFT2020, {"$schema": DRAFT7, "$ref": "#/$defs/text", "maxLength": 1}, "ab", 1),
        (DRAFT7, {"$schema": DRAFT2020, "$ref": "#/$defs/text", "maxLength": 1}, "a", "ab"),
    ],
)
def test_a_part_has_the_draft_of_its_own_schema(root: str, part: Any, valid: Any, invalid: Any) -> None:
    schema = {"$schema": root, "properties": {"part": part}, "$defs": {"text": {"type": "string"}}}
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact"))
    for value, holds in ((valid, True), (invalid, invalid is None)):
        assert walker.accepts(json.dumps({"part": value}, separators=(",", ":"))) == holds
        assert jsonschema_rs.is_valid(schema, {"part": value}) == holds


def test_parts_whose_keywords_the_root_s_draft_refuses() -> None:
    """As zod-to-json-schema writes tuples and .NET's generators bounds, within the parameters of a tool."""
    pair = {"$schema": DRAFT7, "type": "array", "items": [{"const": 1}, {"const": 2}], "additionalItems": False}
    positive = {"$schema": DRAFT4, "type": "integer", "minimum": 0, "exclusiveMinimum": True}
    schema = {"type": "object", "properties": {"pair": pair, "positive": {"$ref": "#/$defs/positive"}}}
    schema |= {"$defs": {"positive": positive}, "additionalProperties": False}
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact"))
    assert walker.accepts('{"pair":[1,2],"positive":1}')
    assert not walker.accepts('{"pair":[1,2,3]}')
    assert not walker.accepts('{"positive":0}')
