"""Types of msgspec accept every text of their language."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import random
import uuid
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from pydantic import Field
from walk import Walker

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.types.derive import typed_schema

msgspec = pytest.importorskip("msgspec", reason="needs msgspec")
Meta, Struct = msgspec.Meta, msgspec.Struct


class Colour(enum.Enum):
    RED = "red"


class Priority(enum.IntEnum):
    LOW = -1
    HIGH = 1


class Circle(Struct, tag="circle"):
    radius: Annotated[float, Meta(gt=0)]


class Square(Struct, tag="square", forbid_unknown_fields=True):
    side: Annotated[int, Meta(ge=1, lt=10)] = 1


class Row(Struct, array_like=True):
    number: int
    note: str = ""


class Invoice(Struct, rename="camel"):
    line_no: Annotated[int, Meta(ge=1)]
    total: decimal.Decimal
    issued: datetime.date
    sent: Annotated[datetime.datetime, Meta(tz=True)]
    code: Annotated[str, Meta(pattern="^[A-Z]{2}[0-9]+$", max_length=6)]
    shapes: list[Union[Circle, Square]]
    rows: Annotated[list[Row], Meta(max_length=2)]
    parent: Optional[Invoice] = None


KINDS = [
    Invoice,
    list[Invoice],
    Row,
    Union[Circle, Square, None],
    datetime.time,
    datetime.datetime,
    datetime.timedelta,
    uuid.UUID,
    bytes,
    Annotated[bytes, Meta(max_length=4)],
    Colour,
    Literal["a", 1],
    dict[int, Row],
    dict[datetime.date, float],
    dict[Union[bool, int], str],
    dict[Optional[str], int],
    dict[Union[int, None], str],
    dict[Union[Literal[None], int], str],  # noqa: PYI061 - msgspec tells it from None
    dict[Priority, int],
    Annotated[dict[Literal[1, 2, "x"], int], Meta(min_length=2)],
    Annotated[decimal.Decimal, Meta(description="a price", examples=["1.50"])],
    dict[Annotated[str, Meta(title="a name", min_length=2)], Annotated[int, Meta(extra={"unit": "kg"}, ge=1)]],
    Annotated[Union[Circle, Square], Meta(extra_json_schema={"deprecated": True})],
    tuple[int, str],
    tuple[bool, ...],
    Annotated[set[int], Meta(min_length=1)],
    Annotated[float, Meta(multiple_of=0.5)],
    Annotated[int, Meta(multiple_of=7)],
    Any,
    float,
    int,
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_text_is_read(kind: Any) -> None:
    holder = msgspec.defstruct("Holder", [("value", kind)])
    typed = typed_schema(holder)
    language = json_schema_language(typed.json_schema, order="auto", integers="plain")
    source = random.Random(3)
    walkers = [Walker.of_grammar(language.grammar)]
    if language.regex is not None:
        walkers.append(Walker.of_regex(language.regex))
    texts = [text for walker in walkers for _ in range(8) if (text := walker.write(source)) is not None]
    assert len(texts) > 4
    for text in texts:
        assert isinstance(typed.parse(text), holder)


def test_an_annotation_that_pydantic_refuses_is_an_error_though_msgspec_ignores_it() -> None:
    with pytest.raises(
        InvalidConstraintError, match=r"is no type that pydantic knows: (Error building|Invalid Schema)"
    ):
        typed_schema(Annotated[int, Field(lt=2.5)])


def test_names_and_tags() -> None:
    language = json_schema_language(typed_schema(list[Union[Circle, Square]]).json_schema, whitespace="compact")
    walker = Walker.of_grammar(language.grammar)
    assert walker.accepts('[{"type":"circle","radius":1.5},{"type":"square"}]')
    assert not walker.accepts('[{"radius":1.5}]')
    assert not walker.accepts('[{"type":"square","side":10}]')


def test_a_union_that_msgspec_rejects_is_one_clear_error() -> None:
    with pytest.raises(InvalidConstraintError, match="Nor does msgspec: Type unions may not contain more than one"):
        typed_schema(Union[list[Circle], set[int]])


@dataclasses.dataclass
class Order:
    """pydantic ignores the limits of msgspec."""

    count: Annotated[int, Meta(ge=1)]
    names: dict[Annotated[str, Meta(min_length=2)], int]


class Keyed(Struct, array_like=True):
    first: int
    second: int = 0


class Late(Keyed, array_like=True, kw_only=True):
    third: int


class Counts(Struct):
    by: dict[Priority, int]


@pytest.mark.parametrize(
    ("kind", "written", "not_written"),
    [
        (Annotated[int, Meta(ge=1)], "1", "0"),
        (list[Annotated[str, Meta(pattern="^a+$")]], '["aa"]', '["b"]'),
        (Order, '{"count":1,"names":{"ab":2}}', '{"count":0,"names":{}} {"count":1,"names":{"a":2}}'),
        (Late, "[1,2,3]", "[1] [1,2]"),
        (Annotated[int, Meta(ge=1, description="from 1 on")], "1", "0"),
        (Counts, '{"by":{"-1":2,"1":3}}', '{"by":{"2":1}} {"by":{"LOW":1}}'),
    ],
    ids=str,
)
def test_limits_and_lengths(kind: Any, written: str, not_written: str) -> None:
    typed = typed_schema(kind)
    language = json_schema_language(typed.json_schema, whitespace="compact", order="auto", integers="plain")
    walker = Walker.of_grammar(language.grammar)
    assert walker.accepts(written)
    typed.parse(written)
    for text in not_written.split():
        assert not walker.accepts(text)
        with pytest.raises(ValueError):  # noqa: PT011 (msgspec's own error)
            typed.parse(text)


class Blob(Struct, tag="blob", rename="camel"):
    raw_data: bytes
    at: datetime.date


@pytest.mark.parametrize(
    ("kind", "value", "plain"),
    [
        (Circle, Circle(1.5), {"type": "circle", "radius": 1.5}),
        (list[Row], [Row(1)], [[1, ""]]),
        (Blob, Blob(b"ab", datetime.date(2024, 1, 2)), {"type": "blob", "rawData": "YWI=", "at": "2024-01-02"}),
        (Circle, {"type": "circle", "radius": 2}, {"type": "circle", "radius": 2}),
    ],
    ids=str,
)
def test_the_json_of_values(kind: Any, value: Any, plain: Any) -> None:
    assert typed_schema(kind).plain(value) == plain


@pytest.mark.parametrize("value", [Circle(-1.0), object()], ids=["out of bounds", "of another type"])
def test_what_msgspec_does_not_read_back_is_an_error(value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (msgspec's own error)
        typed_schema(Circle).plain(value)


def test_a_limit_that_msgspec_does_not_support_is_one_clear_error() -> None:
    with pytest.raises(InvalidConstraintError, match="is no type that msgspec knows: Integer bounds"):
        typed_schema(Annotated[int, Meta(ge=2**63)])


@pytest.mark.parametrize("key", [None, bool, Optional[bool], Literal[None]])  # noqa: PYI061 - msgspec tells it from None
def test_keys_that_are_no_names_are_one_clear_error(key: Any) -> None:
    with pytest.raises(
        UnsupportedConstraintError, match=r"^Keyed\.d\[key\]: union: it cannot be the name of a member$"
    ):
        typed_schema(msgspec.defstruct("Keyed", [("d", dict[key, int])]))


class Session:
    """A class that msgspec does not know."""


class Job(Struct):
    number: int
    session: Optional[Session]
    last: Session = Session()


def test_instances_of_unknown_classes_are_left_out_where_there_is_another_choice() -> None:
    typed = typed_schema(Job)
    walker = Walker.of_grammar(
        json_schema_language(typed.json_schema, whitespace="compact", order="schema", integers="plain").grammar
    )
    text = '{"number":1,"session":null}'
    assert walker.accepts(text)
    assert typed.parse(text).number == 1
    assert not walker.accepts('{"number":1,"session":null,"last":{}}')
    with pytest.raises(
        UnsupportedConstraintError, match=r"Holder\.value: is-instance: JSON has no instances of Session"
    ):
        typed_schema(msgspec.defstruct("Holder", [("value", Session)]))


def test_python_code_of_attrs_is_named() -> None:
    attrs = pytest.importorskip("attrs", reason="needs attrs")

    @attrs.define
    class Checked:
        number: int = attrs.field(validator=attrs.validators.gt(0))

        def __attrs_post_init__(self) -> None: ...

    unenforced = typed_schema(Checked).unenforced
    assert [one.keyword for one in unenforced] == ["__attrs_post_init__", "number's validator"]


@pytest.mark.parametrize("kind", [Annotated[float, Meta(multiple_of=0.1)], msgspec.Raw, dict[bool, int]], ids=str)
def test_what_cannot_be_guaranteed_is_named(kind: Any) -> None:
    with pytest.raises(UnsupportedConstraintError, match=r"Holder\.value"):
        typed_schema(msgspec.defstruct("Holder", [("value", kind)]))
