"""Fields whose aliases could find the value of another field, or one that no field has written."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict
from walk import Walker

from draftline.structured.errors import UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.types.derive import typed_schema


class Misread(BaseModel):
    a: int = Field(default=1, validation_alias=AliasChoices("x", "name"))
    name: Literal["p"]


class MisreadFiller(BaseModel):
    z: int = Field(default=1, validation_alias=AliasChoices("zz", AliasPath("q", "r", 0)))
    y: int = Field(validation_alias=AliasPath("q", "r", 1))


class FirstFiller(BaseModel):
    z: int = Field(validation_alias=AliasChoices(AliasPath("q", "r", 0), "zz"))
    y: int = Field(validation_alias=AliasPath("q", "r", 1))


class MisreadName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    a: int = Field(default=0, alias="x")
    b: Literal["p"] = Field(alias="a")


class MisreadItem(TypedDict):
    name: str
    a: NotRequired[Annotated[int, Field(validation_alias=AliasChoices("x", "name"))]]


class WithinItself(BaseModel):
    own: dict[str, int] = Field(validation_alias=AliasChoices(AliasPath("d", "own"), "d", "e"))


class Forbidding(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = Field(default=0, validation_alias=AliasPath("q", "a"))


class Town(BaseModel):
    town: str


class SharedMembers(BaseModel):
    home: Town
    work: Town
    town: str = Field(default="", validation_alias=AliasChoices(AliasPath("home", "town"), "town"))
    city: str | None = Field(default=None, validation_alias=AliasChoices("city", "town"))


@pytest.mark.parametrize(
    ("kind", "written", "not_written"),
    [
        (Misread, '{"x":2,"name":"p"}', '{"name":"p"}'),
        (MisreadFiller, '{"zz":2,"q":{"r":[null,3]}}', '{"q":{"r":[null,3]}}'),
        (FirstFiller, '{"q":{"r":[2,3]}}', '{"zz":2,"q":{"r":[null,3]}}'),
        (MisreadName, '{"x":2,"a":"p"}', '{"a":"p"}'),
        (MisreadItem, '{"name":"p","x":1}', '{"name":"p"}'),
        (WithinItself, '{"d":{"own":{"own":1}}}', '{"d":{"own":1}}'),
        (Forbidding, '{"q":{"a":1}} {}', '{"q":{}}'),
        (SharedMembers, '{"home":{"town":"a"},"work":{"town":"b"}}', '{"town":"a"}'),
    ],
)
def test_no_alias_finds_a_value_of_another_field(kind: Any, written: str, not_written: str) -> None:
    document = typed_schema(kind).json_schema
    one = Walker.of_grammar(
        json_schema_language(document, whitespace="compact", order="auto", integers="plain").grammar
    )
    for text in written.split():
        assert one.accepts(text)
        TypeAdapter(kind).validate_json(text)
    assert not one.accepts(not_written)
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_json(not_written, strict=True)


def test_a_field_that_has_to_find_another_one_s_value_is_refused() -> None:
    class Both(BaseModel):
        name: Literal["p"]
        a: int = Field(validation_alias=AliasChoices("name", AliasPath("deep", "a")))

    with pytest.raises(UnsupportedConstraintError, match=r"Both\.a.* another field, name,"):
        typed_schema(Both)
