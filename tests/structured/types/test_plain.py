"""The JSON of values, as examples show it to a model: only what the type reads as the same value."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import pytest
from pydantic import AliasPath, Base64Bytes, BaseModel, ConfigDict, Field, Json, SecretStr, computed_field

from draftline.structured.types.derive import typed_schema


class Square(BaseModel):
    model_config = ConfigDict(extra="forbid")
    side: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.side**2


class Renamed(BaseModel):
    count: int = Field(0, validation_alias="in", serialization_alias="out")


class Deep(BaseModel):
    count: Annotated[int, Field(validation_alias=AliasPath("a", "b"))]


class Login(BaseModel):
    password: SecretStr


@dataclasses.dataclass(eq=False)
class Point:
    x: int


class Tag(BaseModel, frozen=True):
    name: str


class Tagged(BaseModel):
    tags: set[Tag]


class Page(BaseModel):
    squares: list[Square]
    at: Point
    numbers: Json[list[int]]


@pytest.mark.parametrize(
    ("kind", "value", "plain"),
    [
        (Square, Square(side=2), {"side": 2}),
        (Square, {"side": 2}, {"side": 2}),
        (
            Page,
            Page(squares=[Square(side=1)], at=Point(2), numbers="[3]"),
            {"squares": [{"side": 1}], "at": {"x": 2}, "numbers": "[3]"},
        ),
        (frozenset[Tag], frozenset([Tag(name="a")]), [{"name": "a"}]),
        (Tagged, Tagged(tags={Tag(name="a")}), {"tags": [{"name": "a"}]}),
        (Base64Bytes, b"ab", "YWI="),
        (dict[int, bool], {1: True}, {"1": True}),
        (Renamed, {"in": 3}, {"in": 3}),
        (Login, {"password": "abc"}, {"password": "abc"}),
    ],
    ids=str,
)
def test_values_and_their_json(kind: Any, value: Any, plain: Any) -> None:
    assert typed_schema(kind).plain(value) == plain


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Renamed, Renamed(**{"in": 3}), r'written as {"out": 3}, which is read as another value; give its JSON'),
        (Login, Login(password="abc"), "which is read as another value"),
        (Deep, Deep(a={"b": 3}), "Field required"),
        (Square, {"side": "x"}, "valid integer"),
        (float, float("inf"), "not JSON compliant"),
    ],
    ids=str,
)
def test_what_a_type_does_not_read_back_is_an_error(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        typed_schema(kind).plain(value)
