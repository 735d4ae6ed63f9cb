"""Recursive types: parts that are the same at each level are written once, and others are not."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypeAliasType, TypedDict
from walk import Walker

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.types.derive import typed_schema


def walker(kind: Any) -> Walker:
    return Walker.of_language(
        json_schema_language(typed_schema(kind).json_schema, whitespace="compact", order="schema", integers="plain")
    )


def nested(inner: str, outer: str, levels: int) -> str:
    for _ in range(levels):
        inner = outer.replace("_", inner)
    return inner


class Place(BaseModel):
    type: Literal["place"]
    latitude: float = Field(ge=-90, le=90)
    note: Annotated[str, AfterValidator(str.strip)] = ""


class Path(BaseModel):
    type: Literal["path"]
    points: list[tuple[float, float]]


class Group(BaseModel):
    type: Literal["group"]
    parts: list[Annotated[Group | Place | Path, Field(discriminator="type")]]


def test_a_part_without_recursion_is_written_once() -> None:
    typed = typed_schema(Group)
    assert typed.json_schema.count('"latitude": {') <= 2  # in its first place, and for the levels below
    assert len(typed.unenforced) == 1
    one = walker(Group)
    for levels in (0, 1, 30, 31):
        for inner in ('{"type":"place","latitude":90}', '{"type":"path","points":[[0,1]]}'):
            text = nested(inner, '{"type":"group","parts":[_]}', levels + 1)
            assert one.accepts(text)
            TypeAdapter(Group).validate_json(text, strict=True)
        assert not one.accepts(nested('{"type":"place","latitude":91}', '{"type":"group","parts":[_]}', levels + 1))
    assert not one.accepts(nested('{"type":"group","parts":[]}', '{"type":"group","parts":[_]}', 33))


class Holder(BaseModel):
    value: Any = None


class Step(BaseModel):
    model_config = ConfigDict(extra="forbid")
    held: Holder
    next: Step | None = None


def test_a_part_with_any_value_is_as_deep_as_its_level_allows() -> None:
    one = walker(Step)
    assert one.accepts(nested("0", "[_]", 60).join(['{"held":{"value":', "}}"]))
    deep = nested('{"held":{"value":[[0]]}}', '{"held":{},"next":_}', 50)
    assert one.accepts(deep)
    assert not one.accepts(deep.replace("[[0]]", nested("0", "[_]", 20)))


class Branch(BaseModel):
    """Two fields have one model, which pydantic describes once."""

    held: Holder | None = None
    other: Holder | None = None
    next: Branch | None = None


class Trunk(BaseModel):
    branch: Branch | None = None


class Root(BaseModel):
    trunk: Trunk | None = None
    other: Trunk | None = None
    next: Root | None = None


def test_a_part_that_pydantic_describes_once_is_as_deep_as_its_level_allows() -> None:
    one = walker(Root)
    for levels, allowed in ((19, True), (21, False)):
        held = f'{{"held":{{"value":{nested("0", "[_]", levels)}}}}}'
        branch = nested(held, '{"next":_}', levels)
        assert one.accepts(nested(f'{{"trunk":{{"branch":{branch}}}}}', '{"next":_}', levels)) == allowed


@with_config(ConfigDict(str_max_length=2))
class Name(TypedDict):
    name: str


class Tree(BaseModel):
    model_config = ConfigDict(str_max_length=3)
    first: Name
    second: Leaf
    below: list[Tree] = []


class Leaf(TypedDict):
    """Two fields of other models have this one, whose limits it takes."""

    text: str


class Forest(BaseModel):
    leaf: Leaf
    trees: list[Tree]


@pytest.mark.parametrize("levels", [0, 1, 5])
def test_each_part_has_the_limits_of_its_own_place(levels: int) -> None:
    one = walker(Forest)
    for first, second, outer in (("ab", "abc", "abcd"), ("abc", "abc", "a"), ("ab", "abcd", "a")):
        leaf = f'{{"first":{{"name":"{first}"}},"second":{{"text":"{second}"}}}}'
        tree = nested(leaf, leaf[:-1] + ',"below":[_]}', levels)
        text = f'{{"leaf":{{"text":"{outer}"}},"trees":[{tree}]}}'
        try:
            TypeAdapter(Forest).validate_json(text)
            valid = True
        except ValueError:
            valid = False
        assert one.accepts(text) == valid, text


Plain = int | dict[str, "Plain"]
Named = TypeAliasType("Named", int | dict[str, "Named"])


@dataclasses.dataclass
class PlainTree:
    tree: Plain


@dataclasses.dataclass
class NamedTree:
    tree: Named


def test_an_alias_that_names_itself_is_a_type_alias_type() -> None:
    with pytest.raises(InvalidConstraintError, match="an alias that names itself must be a TypeAliasType"):
        typed_schema(PlainTree)
    language = json_schema_language(typed_schema(NamedTree).json_schema, whitespace="compact")
    assert Walker.of_language(language).accepts('{"tree":{"a":{"b":1}}}')
