"""unevaluatedProperties and unevaluatedItems beside many conditions: only those that evaluate something new are cases."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from walk import Walker

from draftline.structured.json_schema import json_schema_language

KINDS = [*"pqrstu"]


def when(kind: str, **then: Any) -> dict[str, Any]:
    return {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": then}


# As the parameters of OpenAPI 3.1: each kind limits members that are evaluated anyway, and one of them has one of its own.
MEMBERS = {
    "properties": {"kind": {"enum": KINDS}},
    "dependentSchemas": {
        "kind": {
            "properties": {"style": {"type": "string"}},
            "allOf": [
                *({"$ref": f"#/$defs/{kind}"} for kind in KINDS),
                when("q", properties={"own": True}),
            ],
        }
    },
    "unevaluatedProperties": False,
    "$defs": {kind: when(kind, properties={"style": {"const": kind}}) for kind in KINDS},
}
ITEMS = {
    "type": "array",
    "prefixItems": [{"type": "integer"}],
    "allOf": [
        *({"if": {"prefixItems": [{"const": number}]}, "then": {"prefixItems": [True]}} for number in range(8)),
        {"if": {"prefixItems": [{"const": 9}]}, "then": {"prefixItems": [True, {"type": "string"}]}},
    ],
    "unevaluatedItems": False,
}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (
            MEMBERS,
            [
                {},
                {"kind": "p", "style": "p"},
                {"kind": "q", "own": 1},
                {"kind": "p", "style": "q"},
                {"style": "p"},
                {"kind": "p", "own": 1},
                {"own": 1},
                {"kind": "p", "other": 1},
            ],
        ),
        (ITEMS, [[], [3], [9, "a"], [3, "a"], [9, 9], [9, "a", "b"], ["a"]]),
    ],
    ids=["members", "items"],
)
def test_conditions_that_evaluate_nothing_new_are_no_cases(schema: Any, values: list[Any]) -> None:
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact"))
    validator = jsonschema_rs.validator_for(schema)
    found = [walker.accepts(json.dumps(value, separators=(",", ":"))) for value in values]
    assert found == [validator.is_valid(value) for value in values]
    assert len(set(found)) == 2
