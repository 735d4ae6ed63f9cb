"""Items of sets and keys of dicts: only hashable values are written."""

from __future__ import annotations

import dataclasses
import random
from typing import Annotated, Any, NamedTuple

import pytest
from pydantic import BaseModel, Field, Json, RootModel
from walk import Walker

from draftline.structured.errors import UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.types.derive import typed_schema


class Tagged(BaseModel, frozen=True):
    """Frozen, but hashing it hashes a list."""

    tags: list[str] = []


class Nested(BaseModel, frozen=True):
    inner: tuple[Tagged, ...]


class Rows(RootModel[list[int]], frozen=True):
    pass


class Line(NamedTuple):
    points: list[int]


@dataclasses.dataclass(frozen=True)
class Record:
    parts: dict[str, int]


class Tree(BaseModel, frozen=True):
    name: str
    parent: Tree | None = None
    code: Json[int] = 0


class Keyed(BaseModel):
    """Its hash is its author's."""

    key: int
    values: list[int]

    def __hash__(self) -> int:
        return self.key


@dataclasses.dataclass(frozen=True)
class Noted:
    key: int
    notes: Annotated[list[str], Field(max_length=1)] = dataclasses.field(default_factory=list, hash=False)


@dataclasses.dataclass(eq=False)
class Same:
    """Its hash is its identity's."""

    values: list[int]


@pytest.mark.parametrize("kind", [Tree, Keyed, Noted, Same, Any, tuple[int, ...], Json[tuple[int, str]]], ids=str)
def test_every_set_is_read(kind: Any) -> None:
    _every_text_is_read(set[kind])
    _every_text_is_read(frozenset[kind])


def test_a_set_without_a_type_of_items_has_scalars() -> None:
    _every_text_is_read(set)
    language = json_schema_language(typed_schema(set).json_schema, whitespace="compact")
    walker = Walker.of_grammar(language.grammar)
    assert walker.accepts('["a",1,2.5,true,null]')
    assert not walker.accepts("[[]]")
    assert not walker.accepts("[{}]")


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (set[Tagged], "list"),
        (frozenset[Tagged | None], "list"),
        (set[Nested], "list"),
        (set[Rows], "list"),
        (set[Line], "list"),
        (set[Record], "dict"),
        (set[Json[list[int]]], "list"),
        (dict[Json[list[int]], int], "list"),
        (set[tuple[int, set[int]]], "set"),
        (set[BaseModel], "BaseModel"),
    ],
    ids=str,
)
def test_a_part_that_is_not_hashable_is_named(kind: Any, part: str) -> None:
    with pytest.raises(UnsupportedConstraintError, match=f"because {part} is not"):
        typed_schema(kind)


def test_structs_of_msgspec() -> None:
    msgspec = pytest.importorskip("msgspec", reason="needs msgspec")
    point = msgspec.defstruct("Point", [("x", int), ("more", tuple[int, ...], ())], frozen=True)
    _every_text_is_read(msgspec.defstruct("Holder", [("value", set[point])]))
    _every_text_is_read(msgspec.defstruct("Holder", [("value", set[msgspec.defstruct("Same", ["x"], eq=False)])]))
    _every_text_is_read(
        msgspec.defstruct("Holder", [("value", set[Annotated[tuple[str, ...], msgspec.Meta(max_length=2)]])])
    )
    for item, part in (
        (msgspec.defstruct("Changing", [("x", int)]), "Changing"),
        (msgspec.defstruct("Deep", [("x", list[int])], frozen=True), "list"),
    ):
        with pytest.raises(UnsupportedConstraintError, match=f"because {part} is not"):
            typed_schema(msgspec.defstruct("Holder", [("value", set[item])]))


def _every_text_is_read(kind: Any) -> None:
    typed = typed_schema(kind)
    language = json_schema_language(typed.json_schema, order="schema", integers="plain", whitespace="compact")
    walker = Walker.of_grammar(language.grammar)
    source = random.Random(0)
    texts = [text for _ in range(20) if (text := walker.write(source)) is not None]
    assert len(texts) > 10
    for text in texts:
        typed.parse(text)
