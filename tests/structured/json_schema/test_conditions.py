"""Objects whose kind decides what else they are, said by a condition for each kind: the cases are as many as the kinds."""

from __future__ import annotations

import functools
import itertools
import json
import operator
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from pydantic import Discriminator, Field, Tag, ValidationError, create_model
from walk import Walker

from draftline.structured.json_schema import json_schema_language


def unique(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True}


KINDS = [f"k{number}" for number in range(12)]


def conditions(then: Any, *, required: bool) -> list[Any]:
    """A condition for each kind, which is met without a kind too if none is required."""
    return [
        {
            "if": {"properties": {"kind": {"const": kind}}, **({"required": ["kind"]} if required else {})},
            "then": {"properties": {"value": then(kind)}},
        }
        for kind in KINDS
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"required": ["kind"], "allOf": conditions(lambda kind: {"const": kind}, required=True)},
        {"allOf": conditions(lambda kind: {"const": kind}, required=True)},
        {"allOf": conditions(lambda kind: {"not": {"const": kind[:1] + "0"}}, required=False)},
        {"allOf": [{"anyOf": [{"not": one["if"]}, one["then"]]} for one in conditions(lambda kind: {"const": kind}, required=True)]},
    ],
    ids=["of a required kind", "of a kind", "of no kind too", "as alternatives"],
)  # fmt: skip
def test_a_condition_for_each_kind(schema: Any) -> None:
    schema = {"properties": {"kind": {"enum": KINDS}, "value": {"type": "string"}}, **schema}
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact"))
    validator = jsonschema_rs.validator_for(schema)
    values: list[Any] = [{}, {"value": "k0"}, {"value": "a"}, {"kind": "k9"}, {"kind": "a"}, {"value": 1}, "k1"]
    values += [{"kind": kind, "value": value} for kind in ("k0", "k9", "k11") for value in ("k0", "k9", "k11", 1)]
    found = [walker.accepts(json.dumps(value, separators=(",", ":"))) for value in values]
    assert found == [validator.is_valid(value) for value in values]
    assert len(set(found)) == 2


def test_a_condition_for_each_kind_of_item_in_a_list() -> None:
    parts = [{"anyOf": [{"prefixItems": [{"not": {"const": kind}}]}, {"maxItems": 2}]} for kind in KINDS]
    schema = {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}, "allOf": parts}
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact"))
    validator = jsonschema_rs.validator_for(schema)
    values = [[], ["a", 1, 1], ["k3", 1], ["k3", 1, 1], ["k11", 1, 1], ["a", 1, 1, 1], ["k3", "a"]]
    found = [walker.accepts(json.dumps(value, separators=(",", ":"))) for value in values]
    assert found == [validator.is_valid(value) for value in values]
    assert len(set(found)) == 2


@pytest.mark.parametrize("count", [9, 30])
def test_one_of_many_members_of_open_objects(count: int) -> None:
    """As operators are written. Without one member, or with another value of it, an object fails the same alternative."""
    options = [{"properties": {f"m{n}": {"type": "integer"}}, "required": [f"m{n}"]} for n in range(count)]
    schema = {"type": "object", "oneOf": options}
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact"))
    validator = jsonschema_rs.validator_for(schema)
    values: list[Any] = [
        {},
        {"m0": 1},
        {"m8": 1},
        {"m8": ""},
        {"m0": 1, "m8": 1},
        {"m0": 1, "m8": ""},
        {"m8": 1, "z": 0},
    ]
    found = [walker.accepts(json.dumps(value, separators=(",", ":"))) for value in values]
    assert found == [validator.is_valid(value) for value in values]
    assert len(set(found)) == 2


def test_kinds_that_are_required_beside_them() -> None:
    """As Drone's pipelines and the symbols of .NET's templates are: no option requires the kind by itself."""
    options = [
        {"properties": {"kind": {"const": kind}, f"{kind}a": {"type": "string"}, f"{kind}b": {"type": "integer"}}}
        for kind in KINDS
    ]
    schema = {"type": "object", "required": ["kind"], "oneOf": options}
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact", order="any"))
    validator = jsonschema_rs.validator_for(schema)
    values: list[Any] = [
        {},
        {"k3a": ""},
        {"kind": "k3"},
        {"kind": "k3", "k3a": ""},
        {"kind": "k3", "k3a": 1},
        {"kind": "z"},
    ]
    values += [{"kind": "k3", "k4a": 1}, {"k3b": 1, "kind": "k3"}, {"kind": "k3", "k3b": 1, "k3a": None}]
    found = [walker.accepts(json.dumps(value, separators=(",", ":"))) for value in values]
    assert found == [validator.is_valid(value) for value in values]
    assert len(set(found)) == 2


@pytest.mark.parametrize(
    "discriminator", ["kind", Discriminator(lambda value: value.get("kind"))], ids=["a name", "a function"]
)
def test_a_discriminator_is_always_written(discriminator: Any) -> None:
    """As pydantic says tagged unions whose tags have defaults: no option requires the tag, and pydantic does.

    The schema does not name a discriminator that is a function.
    """
    tagged = [
        create_model(kind, kind=(Literal[kind], kind), **{f"{kind}{n}": (int | None, None) for n in "abcd"})
        for kind in KINDS
    ]
    options = [Annotated[one, Tag(kind)] for one, kind in zip(tagged, KINDS, strict=True)]
    union = functools.reduce(operator.or_, options)
    holder = create_model("Holder", one=(union, Field(discriminator=discriminator)))
    schema = holder.model_json_schema()
    assert ("discriminator" in schema["properties"]["one"]) == (discriminator == "kind")
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact", order="any"))
    validator = jsonschema_rs.validator_for(schema)
    for one in [{"kind": "k3"}, {"kind": "k3", "k3a": 1}, {"kind": "k3", "k4a": ""}, {"k3a": None, "kind": "k3"}]:
        assert walker.accepts(json.dumps({"one": one}, separators=(",", ":")))
        assert validator.is_valid({"one": one})
        holder.model_validate({"one": one})
    for one in [{}, {"k3a": "x"}, {"kind": "z"}, {"kind": "k3", "k3a": "x"}]:
        assert not walker.accepts(json.dumps({"one": one}, separators=(",", ":")))
    assert validator.is_valid({"one": {f"{kind}a": "" for kind in KINDS[1:]}})
    with pytest.raises(ValidationError, match="Unable to extract tag"):
        holder.model_validate({"one": {f"{kind}a": "" for kind in KINDS[1:]}})


def test_discriminated_schemas_within_options_need_no_complement() -> None:
    """Whether two options exclude each other is looked for in their members, too."""
    kinds = [
        {"type": "object", "properties": {"kind": {"const": kind}, **{f"{kind}{n}": {"type": "null"} for n in "abcd"}}}
        for kind in KINDS
    ]
    tagged = {"oneOf": kinds, "discriminator": {"propertyName": "kind"}}
    options = [
        {"type": "object", "properties": {"inner": tagged, "x": {"type": type}}, "required": ["inner", "x"]}
        for type in ("integer", "string")
    ]
    schema = {"oneOf": options}
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact"))
    for value in [{"inner": {"kind": "k3"}, "x": 1}, {"inner": {"kind": "k3"}, "x": ""}]:
        assert walker.accepts(json.dumps(value, separators=(",", ":")))
        assert jsonschema_rs.is_valid(schema, value)
    assert not walker.accepts('{"inner":{"kind":"k3"},"x":null}')


LEFT = {"type": "object", "properties": {"kind": {"const": "left"}, "x": {"type": "integer"}}}
RIGHT = {"type": "object", "properties": {"kind": {"const": "right"}}, "required": ["y"]}
SIDES = {"oneOf": [LEFT, RIGHT], "discriminator": {"propertyName": "kind"}}
EITHER = {"anyOf": [LEFT, RIGHT], "discriminator": {"propertyName": "kind"}}
DEFAULTS = {
    "oneOf": [
        side | {"properties": side["properties"] | {"kind": {"enum": [kind], "default": kind}}}
        for side, kind in ((LEFT, "left"), (RIGHT, "right"))
    ]
}
PLAIN = {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "written", "not_written"),
    [
        (SIDES, {"kind": "left"}, {"x": 1}),
        (EITHER, {"kind": "left"}, {"x": 1}),
        (DEFAULTS, {"kind": "left"}, {"x": 1}),
        ({"type": "object", "not": DEFAULTS}, {"y": 1, "x": 1}, {"x": 1}),
        ({"oneOf": [DEFAULTS, PLAIN]}, {"kind": "left"}, {"x": 1}),
        (SIDES | {"discriminator": {"propertyName": "kind", "defaultMapping": "left"}}, {"x": 1}, {"y": 1}),
        (SIDES | {"discriminator": "kind"}, {"x": 1}, {"y": 1}),
        ({"type": "object", "not": SIDES}, {"y": 1, "x": 1}, {"x": 1}),
        ({"type": "object", "not": EITHER}, {"kind": "up"}, {"x": 1}),
        ({"oneOf": [SIDES, PLAIN]}, {"kind": "left"}, {"x": 1}),
        (SIDES | {"oneOf": [PLAIN, {"type": "integer"}]}, {"x": 1}, {"kind": "left"}),
        (EITHER | {"anyOf": [PLAIN, {"type": "integer"}]}, {"x": 1}, {"kind": "left"}),
    ],
    ids=[
        "tagged",
        "tagged anyOf",
        "tagged by defaults",
        "negated defaults",
        "defaults beside an object without a tag",
        "with a default",
        "of Swagger 2.0",
        "negated",
        "negated anyOf",
        "beside an object without a tag",
        "of no option",
        "of no option of anyOf",
    ],
)
def test_a_discriminator_makes_no_value_valid(schema: Any, written: Any, not_written: Any) -> None:
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact", order="any"))
    assert walker.accepts(json.dumps(written, separators=(",", ":")))
    assert jsonschema_rs.is_valid(schema, written)
    assert not walker.accepts(json.dumps(not_written, separators=(",", ":")))


PET = {"type": "object", "required": ["kind"], "properties": {"kind": {"type": "string"}}}
PETS = {
    "Cat": {"allOf": [PET, {"properties": {"hunts": {"type": "boolean"}}, "required": ["hunts"]}]},
    "Dog": {"allOf": [PET, {"properties": {"hunts": False, "barks": {"type": "boolean"}}}]},
    "Bird": PET | {"properties": {"kind": {"const": "bird"}, "hunts": {"type": "integer"}}},
}


@pytest.mark.parametrize("keyword", ["oneOf", "anyOf"])
def test_the_mapping_of_a_discriminator(keyword: str) -> None:
    """OpenAPI's tags are often of any text in their schemas, and only the mapping says which text is of which schema."""
    mapping = {"cat": "#/$defs/Cat", "tiger": "Cat", "dog": "#/$defs/Dog", "fowl": "#/$defs/Bird"}
    discriminator = {"propertyName": "kind", "mapping": mapping}
    schema = {keyword: [{"$ref": f"#/$defs/{name}"} for name in PETS], "discriminator": discriminator, "$defs": PETS}
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact", order="any"))
    written = [{"kind": "cat", "hunts": True}, {"kind": "tiger", "hunts": True}, {"kind": "dog", "barks": True}]
    written.append({"kind": "bird", "hunts": 1})  # its schema has another text than the mapping
    for value in written:
        assert walker.accepts(json.dumps(value, separators=(",", ":"))), value
        assert jsonschema_rs.is_valid(schema, value)
    for value in [{"kind": "dog", "hunts": True}, {"kind": "cow", "barks": True}, {"kind": "fowl", "hunts": 1}]:
        assert not walker.accepts(json.dumps(value, separators=(",", ":"))), value


@pytest.mark.parametrize("choice", ["oneOf", "anyOf"])
def test_a_reference_or_one_of_many_kinds(choice: str) -> None:
    """As AsyncAPI has it. Only one of the kinds is open and so may look like a reference: the others need no complement."""
    kinds = [
        {
            "type": "object",
            "properties": {"type": {"const": kind}, "a": {"type": "string"}, "b": {"type": "string"}},
            "patternProperties": {"^x-": {"type": "integer"}},
            "additionalProperties": False,
            "required": ["type"],
        }
        for kind in KINDS
    ]
    kinds[5]["additionalProperties"] = True
    reference = {"type": "object", "required": ["$ref"], "properties": {"$ref": {"type": "string"}}}
    schema = {"oneOf": [reference, {choice: kinds}]}
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact", order="any"))
    validator = jsonschema_rs.validator_for(schema)
    values: list[Any] = [{}, {"$ref": "a"}, {"$ref": "a", "type": "k5"}, {"$ref": "a", "type": "k4"}, {"type": "k4"}, 1]
    values += [
        {"type": "k4", "q": 1},
        {"type": "k5", "q": 1},
        {"$ref": 1, "type": "k5"},
        {"type": "k5", "$ref": "", "a": 1},
    ]
    found = [walker.accepts(json.dumps(value, separators=(",", ":"))) for value in values]
    assert found == [validator.is_valid(value) for value in values]
    assert len(set(found)) == 2


def test_what_must_hold_needs_no_complement() -> None:
    """As one of two members, each of which is what the object says of it anyway. Items that repeat have no form."""
    members = {"one": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "two": {"format": "uri"}}
    parts = [{"properties": {name: {"$ref": f"#/properties/{name}"}}, "required": [name]} for name in members]
    schema = {"type": "object", "properties": members, "additionalProperties": False, "oneOf": parts}
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact"))
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    values = [{}, {"one": ["a"]}, {"one": ["a", "a"]}, {"two": "a:b"}, {"two": "a"}, {"one": [], "two": "a:b"}]
    found = [walker.accepts(json.dumps(value, separators=(",", ":"))) for value in values]
    assert found == [validator.is_valid(value) for value in values]
    assert len(set(found)) == 2


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [unique({"type": "string"}), unique({"enum": ["a", "b", 1]})]},
        {"oneOf": [unique({"enum": ["a", "b"]}), unique({"enum": ["b", "c"]}), {"type": "array", "maxItems": 1}]},
        {**unique({"type": ["string", "number"]}), "not": unique({"type": "string"})},
        {**unique(True), "if": unique({"type": "string"}), "then": {"minItems": 2}, "else": {"maxItems": 2}},
        {**unique(unique({"type": "string"})), "not": {"items": {"uniqueItems": True, "maxItems": 1}}},
    ],
)
def test_the_complement_of_unique_items_among_unique_items(schema: Any) -> None:
    """Arrays whose items repeat are none of them, so that they need no form."""
    walker = Walker.of_language(json_schema_language(json.dumps(schema), whitespace="compact"))
    validator = jsonschema_rs.validator_for(schema)
    items = ["a", "b", "c", 1, 2, [], ["a"], ["a", "b"], ["a", "a"]]
    values = [list(some) for count in range(4) for some in itertools.product(items, repeat=count)]
    found = [walker.accepts(json.dumps(value, separators=(",", ":"))) for value in values]
    assert found == [validator.is_valid(value) for value in values]
    assert len(set(found)) == 2
