"""Texts that particular types write and do not write, and the fields that `typed_schema` refuses by name."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import importlib
import io
import json
import re
import zoneinfo
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

import pydantic
import pytest
from annotated_types import LowerCase
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    StringConstraints,
    Tag,
    TypeAdapter,
    WithJsonSchema,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic.types import Base64Encoder, Base64UrlEncoder, PaymentCardNumber
from pydantic_core import core_schema
from random_types import (
    Aliased,
    Bus,
    Car,
    Cat,
    Colour,
    Dog,
    Label,
    Left,
    Level,
    Mixed,
    Movie,
    Node,
    Open,
    Page,
    Pair,
    Point,
)
from typing_extensions import TypedDict, deprecated
from walk import Walker

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.json_schema import SchemaLimits, json_schema_language
from draftline.structured.types import derive
from draftline.structured.types.derive import typed_schema


def walker(kind: Any) -> Walker:
    language = json_schema_language(
        typed_schema(kind).json_schema, whitespace="compact", order="auto", integers="plain"
    )
    return Walker.of_grammar(language.grammar)


class Unusual(enum.Enum):
    """A value that JSON has not."""

    INFINITE = float("inf")
    TEXT = "s"
    NUMBER = 2
    HALF = 2.5


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = 3
    OWN = 8


class Days(enum.IntFlag):
    """More of them than have combinations."""

    MON, TUE, WED, THU, FRI, SAT, SUN, HOL, BIRTH = (1 << bit for bit in range(9))


FILES_OF_HOSTS = pydantic.UrlConstraints(allowed_schemes=["file", "smb"], host_required=True)
BOUNDED = Annotated[Decimal, Field(max_digits=5, decimal_places=2, ge=0)]


class Derived(BaseModel):
    """One default is made of another field's value, which Python code may reject."""

    b: int
    a: int = Field(default_factory=lambda data: 1 // data["b"])


class Checks(TypedDict):
    """One default is no value of its type."""

    a: Annotated[int, Field(default="x", validate_default=True)]
    b: int


class Numbered(BaseModel, extra="allow"):
    """pydantic reads no extra member into a key that is no string."""

    a: int = 0
    __pydantic_extra__: dict[int, int]


@pytest.mark.parametrize(
    ("kind", "written", "not_written"),
    [
        (int, "0 -7 123456789012345678901234567890", "1.0 1e3 00 " + "9" * 41),
        (Annotated[int, Field(gt=3, le=12)], "4 12", "3 13 4.0"),
        (float, "0 1.5 -2e20 1e-7 1e+16", "NaN Infinity 1e309 1e999 10000000000000000000"),
        (Annotated[float, Field(gt=0, lt=1)], "0.5 0.999 1e-7", "0 0.0 1 1.0 1e-330"),
        (Annotated[float, Field(gt=1e300)], "1.0000000000000002e+300 1.7976931348623157e308", "1e300 1e+300 1"),
        (Annotated[float, Field(lt=-1e305)], "-1.7e308", "-1e305 -1e+305 1e308"),
        (Decimal, '"1.50" "-0.001" "123456789012345678.5"', '1.5 "x" "{" "NaN" "1e5" "01"'),
        (BOUNDED, '"0" "123.45" "0.05"', '"1234.5" "1.234" "-1" "-0.01"'),
        (Annotated[Decimal, Field(max_digits=2, decimal_places=2)], '"0.5" "0.12"', '"0" "1" "1.2"'),
        (Annotated[Decimal, Field(multiple_of=Decimal("0.05"), ge=1)], '"1" "1.05" "2.10"', '"1.02" "0.95"'),
        (Annotated[Decimal, Field(ge=10**20)], '"100000000000000000000" "999999999999999999999.5"', '"99999999999999999999.9"'),
        (Annotated[Decimal, Field(gt=10**18 - 1, decimal_places=0)], '"1000000000000000000"', '"999999999999999999" "10000000000000000000"'),
        (Annotated[Decimal, Field(ge=0, le=Decimal(10) ** 27, decimal_places=0)], '"0" "1000000000000000000000000000"', '"1000000000000000000000000001"'),
        (Annotated[Decimal, Field(max_digits=20, ge=10**19)], '"12345678901234567890"', '"1234567890123456789" "12345678901234567890.5"'),
        (Annotated[Decimal, Field(multiple_of=5, ge=10**19)], '"10000000000000000005" "99999999999999999995"', '"10000000000000000001" "9999999999999999995"'),
        (Annotated[Decimal, Field(multiple_of=5, decimal_places=20, ge=1)], '"5" "999995" "5.000000000000"', '"0" "1" "5.5"'),
        (Annotated[Decimal, Field(multiple_of=Decimal("1e-20"))], '"99999999.5" "-99999999"', '"100000000" "-100000000.5"'),
        (bool, "true false", '1 "true"'),
        (None, "null", '"None"'),
        (date, '"2024-02-29" "0001-01-01" "9999-12-31"', '"0000-01-01" "2023-02-29" "2024-2-1" 0'),
        (Annotated[date, Field(ge=date(2024, 2, 28), lt=date(2024, 3, 2))], '"2024-02-29" "2024-03-01"', '"2024-02-27" "2024-03-02"'),
        (time, '"23:59:59" "01:02:03.000004" "00:00:00Z" "10:00:00+05:30"', '"24:00:00" "23:59:60" "1:00:00" "10:00:00+24:00"'),
        (Annotated[time, Field(ge=time(8, 30), lt=time(17))], '"08:30:00" "16:59:59.999999"', '"08:29:59" "17:00:00" "09:00:00Z"'),
        (datetime, '"2024-01-01T00:00:00" "2024-01-01T00:00:00Z"', '"2024-01-01" "2024-01-01T24:00:00" "0000-01-01T00:00:00"'),
        (pydantic.AwareDatetime, '"2024-01-01T00:00:00-01:00"', '"2024-01-01T00:00:00"'),
        (pydantic.NaiveDatetime, '"2024-01-01T00:00:00"', '"2024-01-01T00:00:00Z"'),
        (Annotated[pydantic.NaiveDatetime, Field(lt=datetime(2024, 1, 2, tzinfo=timezone(timedelta(hours=-5))))], '"2024-01-01T23:59:59"', '"2024-01-02T00:00:00" "2024-01-02T04:00:00"'),
        (Annotated[datetime, Field(gt=datetime(2024, 1, 1, tzinfo=UTC))], '"2024-01-01T00:00:00.000001Z" "2025-05-05T05:05:05Z"', '"2024-01-01T00:00:00Z" "2024-01-01T00:00:00.000Z" "2025-05-05T05:05:05"'),
        (timedelta, '"P3DT4H" "PT0.5S" "-P1D" "PT90M" "P1DT36H" "PT1H75M30.5S"', '"P1Y" "P1M" "P1DT" "PT" "PT1.5H" "1 day" 5 "PT99999999999S"'),
        (Annotated[timedelta, Field(ge=timedelta(hours=1), le=timedelta(days=2))], '"PT36H" "PT90M" "P2D" "PT3600S" "PT1H30M" "P1DT23H59M59.9S"', '"PT59M" "P3D" "-PT2H" "PT3599.9S" "PT59M59S" "P2DT0.1S" "PT1H60M"'),
        (Annotated[timedelta, Field(gt=timedelta(hours=-1, minutes=-30), lt=timedelta(0))], '"-PT1H29M59S" "-PT1H" "-PT1S" "-PT89M"', '"-PT1H30M" "-PT1H29M60S" "-PT0H0.0S" "PT0S" "PT1S" "-P1D"'),
        (Annotated[int, Field(ge="9007199254740993")], "9007199254740993", "9007199254740992"),
        (Annotated[date, Field(gt="2024-02-28", le="2024-03-01")], '"2024-02-29" "2024-03-01"', '"2024-02-28" "2024-03-02"'),
        (Annotated[time, Field(lt="08:30:00")], '"08:29:59"', '"08:30:00"'),
        (Annotated[datetime, Field(ge=date(2024, 1, 1))], '"2024-01-01T00:00:00"', '"2023-12-31T23:59:59" "2024-01-01T00:00:00Z"'),
        (Annotated[datetime, Field(lt="2024-01-01T00:00:00Z")], '"2023-12-31T23:59:59Z"', '"2024-01-01T00:00:00Z" "2023-12-31T23:59:59"'),
        (Annotated[timedelta, Field(gt=3600)], '"PT3601S" "PT2H"', '"PT1H" "PT3600S"'),
        (UUID, '"123e4567-e89b-12d3-a456-426614174000"', '"123e4567" "{123e4567-e89b-12d3-a456-426614174000}"'),
        (pydantic.UUID4, '"123e4567-e89b-42d3-a456-426614174000"', '"123e4567-e89b-12d3-a456-426614174000" "123e4567-e89b-42d3-c456-426614174000"'),
        (IPv4Network, '"10.0.0.0/8" "10.16.0.0/12" "1.2.3.4/32" "0.0.0.0/0"', '"10.0.0.1/8" "10.8.0.0/12" "1.2.3/8"'),
        (IPv6Network, '"2001:db8::/48" "fe80::/10" "fc00::/7" "2001:DB8::/29" "2001:db8:0:100::/56" "::/0" "::1" "1:2:3:4:5:6:7:8/128" "1:2:3:4:5:6:7:8000/113" "1:2:3:4:5:6:7:0/113" "1:2:3:4:5:6:7:0/112" "1:2:3:4:5:6:8000:0/97" "1:2:3:4:5:6::/97"', '"fe81::/10" "2001:db8::1/64" "2001:db8::/28" "1:2:3:4:5:6:7:0/111" "1:2:3:4:5:6:7:8::/128" "::/129"'),
        (pydantic.HttpUrl, '"https://example.com/a?b=c%20d#e" "http://1.2.3.4:80/"', '"ftp://a.b" "http://" "http://a.1" "http://xn--a.b" "http://a.b/%zz"'),
        (Annotated[pydantic.HttpUrl, pydantic.UrlConstraints(max_length=20)], '"https://a.bc/d"', '"https://example.com" "https://a.b/?c=\'"'),
        (Annotated[pydantic.HttpUrl, Field(max_length=255)], '"https://example.com"', '"https://a.b/' + "c" * 242 + '"'),
        (Annotated[pydantic.AnyUrl, FILES_OF_HOSTS], '"smb://a/b"', '"file:///b" "SMB://a"'),
        (pydantic.HttpUrl, '"https://api.v2.eu-west-1.example.co.uk/%e2%82%ac" "http://my_host:8000"', '"http://a.b.c.d.e.f.g" "http://a:b@c.d"'),
        (pydantic.RedisDsn, '"redis://:p%40ss@localhost:6379/0" "rediss://me@a.b"', '"redis://:@a"'),
        (pydantic.MongoDsn, '"mongodb://a.b:27017" "mongodb://a:65535"', '"mongodb://a:65536" "mongodb://a:123456"'),
        (pydantic.PostgresDsn, '"postgres://me:pw@db.local:5432/x"', '"http://a.b"'),
        (Path, '"a/b" ""', "1"),
        (Colour, '"red" "grün"', '"RED" "blue"'),
        (Level, "1 9007199254740993", '1.0 9007199254740993.0 "1"'),
        (Mixed, '"1" 1 0.5 null', "2 true"),
        (Literal["a", 1, True, None], '"a" 1 true null', "1.0 false"),
        (Optional[int], "1 null", "1.5"),
        (Union[int, str], '1 "a"', "1.5 null"),
        (tuple[int, str], '[1,"a"]', '[1] [1,"a",2]'),
        (tuple[int, ...], "[] [1,2]", '["a"]'),
        (tuple[()], "[]", "[1]"),
        (set[Colour], '["red","grün"] []', '["red","red"]'),
        (Annotated[frozenset[Literal[1, 2, 3]], Field(min_length=2)], "[1,2] [3,1,2]", "[1] [1,1]"),
        (Annotated[set[int], Field(min_length=1, max_length=2)], "[1] [1,1]", "[] [1,2,3]"),
        (dict[int, bool], '{"1":true,"-20":false} {}', '{"a":true} {"1.0":true}'),
        (dict[Colour, int], '{"red":1}', '{"blue":1}'),
        (dict[date, int], '{"2024-02-29":1}', '{"2023-02-29":1}'),
        (Annotated[dict[str, int], Field(min_length=1, max_length=2)], '{"a":1}', "{}"),
        (Point, '{"x":1.5} {"x":1,"y":2}', '{"y":1} {"x":1,"hidden":3}'),
        (Movie, '{"title":"x","year":1999} {"title":"x"}', '{"year":1999} {"title":"x","year":1800}'),
        (Pair, '[1] [1,"a"]', '[] ["a"] {"left":1}'),
        (Page[int], '{"items":[1],"total":1}', '{"items":["a"],"total":1}'),
        (Label, '{"text":"a b"}', '{"text":"_a"} {"text":""}'.replace("_", " ")),
        (Aliased, '{"uno":1,"zwei":"a","deep":{"three":[null,true]}}', '{"one":1,"deep":{"three":[null,true]}} {"uno":1,"deep":{"three":[true]}}'),
        (Open, '{"bekannt":"a","x":1}', '{"bekannt":"a","known":"b"} {"x":1}'),
        (Left, '{"right":{"left":[{"right":null}]}}', '{"right":{}}'),
        (Annotated[Cat | Dog, Field(discriminator="kind")], '{"kind":"cat","lives":3} {"kind":"wolf"}', '{"lives":3} {"kind":"cow"}'),
        (pydantic.Json[list[int]], r'"[1,2]" "[]"', r'"[1,\"a\"]" [1]'),
        (pydantic.Base64Bytes, '"YWI=" ""', '"YWI" "YW I="'),
        (pydantic.Base64Str, '"YWI=" ""', '"/w=="'),
        (Annotated[bytes, Field(min_length=6), pydantic.EncodedBytes(Base64Encoder)], '"YWJjZA=="', '"YWI="'),
        (Annotated[str, Field(max_length=4), pydantic.EncodedStr(Base64UrlEncoder)], '"YWI="', '"YWJjZA=="'),
        (Annotated[bytes, Field(max_length=2)], '"ab"', '"abc" "é"'),
        (pydantic.ByteSize, "1024", '"1KB"'),
        (pydantic.Secret[Annotated[int, Field(ge=3)]], "3", "2"),
        (Annotated[Union[int, float], Field(gt=3, le=10)], "4 3.5 10", "3 3.0 11 10.5"),
        (Annotated[float, Field(gt=float("-inf"), le=2.5)], "-1e300 2.5", "2.6"),
        (Derived, '{"b":1,"a":2}', '{"b":1}'),
        (Checks, '{"a":1,"b":2}', '{"b":2}'),
        (Annotated[Union[int, float, None], Field(ge=2.5)], "3 2.5 null", "2 2.4"),
        (Annotated[Union[int, Decimal], Field(lt=3)], '2 "2.99"', '3 "3"'),
        (Annotated[Union[int, str], Field(gt=3)], "4", '3 "4"'),
        (Annotated[Union[str, list[int]], Field(min_length=2, max_length=3)], '"ab" [1,2]', '"a" [1] "abcd" [1,2,3,4]'),
        (Annotated[Union[str, int], Field(pattern="^a+$")], '"aa"', '"ab" 1'),
        (Annotated[str, Field(pattern=re.compile("^(?!ab)(?=.*c)[a-c]{3}$"))], '"acb" "bac"', '"abc" "aab"'),
        (Annotated[str, AfterValidator(lambda text: text), Field(max_length=2), Field(pattern="^a")], '"ab"', '"b" "abc"'),
        (Annotated[pydantic.SecretStr, Field(min_length=2)], '"ab"', '"a"'),
        (Annotated[pydantic.SecretBytes, Field(max_length=2)], '"ab"', '"abc" "éé"'),
        (pydantic.EmailStr, '"a.b_c.d+e.f-g@my-own-site.co.uk" "o\'n@12.io"', '"a.b.c.d.e@f.gh" ".a@b.cd" "a..b@c.de" "a@b--c.de"'),
        (Annotated[pydantic.EmailStr, Field(max_length=8)], '"a@bc.de"', '"abc@bc.de" "a@BC.de"'),
        (Annotated[pydantic.EmailStr, Field(max_length=254)], '"a@bc.de"', '"a"'),
        (zoneinfo.ZoneInfo, '"UTC" "Europe/Paris"', '"Mars/Olympus" ""'),
        (Unusual, '"s" 2 2.5', "Infinity NaN"),
        (Rights, "0 1 2 3 8 9 10 11", "4 5 12 16 -1"),
        (Days, "1 64 256", "3 0 512"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_texts(kind: Any, written: str, not_written: str) -> None:
    one = walker(kind)
    texts = re.findall(r"\S+(?: \w+\"\S*)*", written)
    assert [text for text in texts if not one.accepts(text)] == []
    for text in texts:
        TypeAdapter(kind).validate_json(text)
        TypeAdapter(kind).validate_json(text, strict=True)
    assert [text for text in not_written.split() if one.accepts(text)] == []


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("ada@b.org", True),
        ("Ada <ada@b.org>", True),
        ("Zoë van der O'Neil-Ott <zoe@b.org>", True),
        ('"A. Ламанова (山)" <ada@b.org>', True),
        ("Ada", False),
        ("Ada<ada@b.org>", False),
        ("Ada <ada>", False),
        ("A. L. <ada@b.org>", False),
        ('"A" B" <ada@b.org>', False),
        ('"' + "ж" * 64 + '" <ada@b.org>', True),
        ('"' + "A" * 2048 + '" <ada@b.org>', False),
    ],
)
def test_names_before_email_addresses(text: str, written: bool) -> None:
    assert walker(pydantic.NameEmail).accepts(json.dumps(text, ensure_ascii=False)) == written
    if written:
        TypeAdapter(pydantic.NameEmail).validate_python(text)


class Person(BaseModel):
    name: str
    meeting: pydantic.FutureDate


class Nested(BaseModel):
    people: list[Person]
    file: pydantic.FilePath
    other: pydantic.FilePath | None = None


class Checked(BaseModel):
    age: int
    code: Annotated[str, AfterValidator(str.upper)]

    @field_validator("age")
    @classmethod
    def _adult(cls, age: int) -> int:
        return age

    @model_validator(mode="after")
    def _whole(self) -> Checked:
        return self


class Tool(BaseModel):
    name: str
    run: Callable[[str], str]


class Base(BaseModel, abc.ABC):
    name: str

    @abc.abstractmethod
    def run(self) -> None: ...


class Agent(BaseModel, arbitrary_types_allowed=True):
    name: str
    tools: list[Tool] = []
    tool: Union[Tool, Base, None] = None
    source: Union[str, io.IOBase] = ""


class Plain(BaseModel):
    kind: Literal["plain"]


class Hooked(BaseModel):
    kind: Literal["hooked"]
    hook: Callable[[], None]


class Custom:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return {"type": "function-plain", "function": {"type": "no-info", "function": str}}


@pytest.mark.parametrize(
    ("kind", "paths"),
    [
        (Person, ["Person.meeting"]),
        (Nested, ["Nested.people[].meeting", "Nested.file"]),
        (Annotated[str, StringConstraints(pattern=r"\<x")], ["str"]),
        (dict[str, Annotated[set[int], Field(min_length=2)]], ["dict[]"]),
        (set[Person], ["set["]),
        (Literal[Colour.RED], ["Literal"]),
        (re.Pattern[bytes], ["re.Pattern[bytes]"]),
        (Custom, ["Custom"]),
        (Annotated[int, PlainValidator(int)], ["int"]),
        (type[int], ["type[int]"]),
        (Union[type[int], Callable[[], int]], ["Union", "Union"]),
        (dict[str, list[Callable[[], int]]], ["dict[str,"]),
        (Tool, ["Tool.run"]),
        (Union[Tool, Base], ["Union", "Union"]),
        (list[Base], ["list["]),
        (Annotated[dict[str, int], Field(min_length=2)], ["dict[str, int]"]),
        (Annotated[int, Field(gt=3, lt=4)], ["int"]),
        (Annotated[tuple[int, str], Field(max_length=1)], ["tuple[int, str]"]),
        (Annotated[pydantic.AnyUrl, pydantic.UrlConstraints(allowed_schemes=["HTTPS", "my_app"])], ["AnyUrl"]),
        (Annotated[pydantic.HttpUrl, Field(pattern="^https")], ["HttpUrl"]),
        (Annotated[pydantic.SecretStr, Field(pattern="^a")], ["SecretStr"]),
        (Annotated[pydantic.Secret[int], Field(gt=3)], ["pydantic.types.Secret"]),
        (Annotated[pydantic.ByteSize, Field(gt=1000)], ["ByteSize"]),
        (Annotated[Any, Field(gt=3)], ["Any"]),
        (Annotated[Annotated[Union[int, str], Field(union_mode="left_to_right")], Field(gt=3)], ["Union"]),
        (Annotated[Union[int, float], Field(multiple_of=0.1)], ["Union"]),
        (PaymentCardNumber, ["PaymentCardNumber"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_guaranteed_is_named(kind: Any, paths: list[str]) -> None:
    with pytest.raises(UnsupportedConstraintError) as caught:
        typed_schema(kind)
    named = [violation.pointer for violation in caught.value.violations]
    assert len(named) == len(paths)
    for path, name in zip(paths, named, strict=True):
        assert name.startswith(path)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Literal[Colour.RED], "only if the Enum is a str or an int"),
        (Literal[b"a"], "none of its values can be written in JSON"),
        (pydantic.FutureDate, "give its type a bound"),
    ],
)
def test_the_reason_says_what_to_change(kind: Any, reason: str) -> None:
    with pytest.raises(UnsupportedConstraintError, match=reason):
        typed_schema(kind)


def test_an_error_has_the_path_of_a_field_and_no_pointer_into_the_schema() -> None:
    class Holder(BaseModel):
        numbers: Annotated[list[Annotated[int, Field(gt=3, lt=4)]], Field(min_length=1)]

    with pytest.raises(UnsupportedConstraintError) as caught:
        typed_schema(Holder)
    assert str(caught.value) == "Holder: type: no value matches the schema, since none matches Holder.numbers[]"


def test_choices_and_defaults_are_written_without_what_json_cannot_hold() -> None:
    one = walker(Agent)
    texts = ['{"name":"a"}', '{"name":"a","tools":[]}', '{"name":"a","tool":null}', '{"name":"a","source":"b"}']
    assert [one.accepts(text) for text in texts] == [True, False, True, True]
    for text in ('{"name":"a","tool":null}', '{"name":"a","source":"b"}'):
        Agent.model_validate_json(text, strict=True)
    assert walker(Union[Tool, Agent]).accepts('{"name":"a"}')
    assert walker(dict[str, Union[Tool, int]]).accepts('{"a":1}')
    tagged = walker(Annotated[Union[Plain, Hooked], Field(discriminator="kind")])
    assert tagged.accepts('{"kind":"plain"}')
    assert not tagged.accepts('{"kind":"hooked"}')


def passed(value: Any, handler: Any) -> Any:
    return handler(value)


class Linked(BaseModel):
    """A recursive type of which each level has several validators."""

    next: Annotated[Optional[Linked], *[WrapValidator(passed)] * 10] = None


def test_recursive_types_with_many_validators_have_fewer_levels() -> None:
    one = walker(Linked)
    for levels in (1, 5):
        text = '{"next":' * levels + "null" + "}" * levels
        assert one.accepts(text)
        Linked.model_validate_json(text)


def test_extra_members_are_written_only_if_pydantic_reads_their_names() -> None:
    one = walker(Numbered)
    assert one.accepts('{"a":1}')
    for text in ('{"1":2}', '{"b":2}'):
        if one.accepts(text):  # older ones do not look at the names
            Numbered.model_validate_json(text)


GENERICS = """
from typing import Generic, TypeVar
from pydantic import BaseModel

Item = TypeVar("Item")

class Ping(BaseModel, Generic[Item]):
    pong: "Pong[Item]"

class Pong(BaseModel, Generic[Item]):
    ping: Item | Ping[Item]

Ping.model_rebuild()
"""


def test_a_type_that_pydantic_does_not_complete_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "incomplete_generics.py").write_text(GENERICS)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("incomplete_generics")
    module.Ping[str].model_validate({"pong": {"ping": "a"}})
    incomplete = module.Pong[str]
    if incomplete.__pydantic_complete__:
        pytest.skip("this pydantic completes it")
    with pytest.raises(InvalidConstraintError, match="is no type that pydantic knows"):
        typed_schema(incomplete)


@dataclasses.dataclass
class Outdated:
    """Its annotation names what its module does not have."""

    zone: zoneinfo.NoSuchName


def test_an_annotation_that_cannot_be_evaluated_is_one_clear_error() -> None:
    with pytest.raises(
        InvalidConstraintError, match="is no type that pydantic knows: module 'zoneinfo' has no attribute"
    ):
        typed_schema(Outdated)


class Unstated(str):
    """A string with a validator, whose class states no JSON Schema."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: pydantic.GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: pydantic.GetJsonSchemaHandler) -> Any:
        raise NotImplementedError


def test_a_class_may_state_no_json_schema() -> None:
    typed = typed_schema(Unstated)
    assert json.loads(typed.json_schema) == {"type": "string"}
    assert [one.keyword for one in typed.unenforced] == ["after"]


def test_python_validators_are_named_once() -> None:
    unenforced = typed_schema(Checked).unenforced
    assert [(one.pointer, one.keyword) for one in unenforced] == [
        ("Checked", "after"),
        ("Checked.age", "after"),
        ("Checked.code", "after"),
    ]
    assert "Checked._adult" in unenforced[1].reason


class Ordered(Pair):
    def __new__(cls, left: int, right: str = "x") -> Any:
        if left > len(right):
            raise ValueError("too long")
        return super().__new__(cls, left, right)


@dataclasses.dataclass
class Single:
    number: int

    def __new__(cls) -> Any:
        return super().__new__(cls)


@deprecated("use Point")
@dataclasses.dataclass
class OldPoint:
    x: float


@pytest.mark.parametrize("kind", [Ordered, Single], ids=str)
def test_code_that_makes_instances_is_named(kind: Any) -> None:
    assert [one.keyword for one in typed_schema(kind).unenforced] == ["__new__"]


@pytest.mark.parametrize("kind", [Pair, Point, OldPoint], ids=str)
def test_code_that_python_writes_is_not_named(kind: Any) -> None:
    assert typed_schema(kind).unenforced == ()


def test_a_validator_that_pydantic_calls_has_its_own_name() -> None:
    class Old(BaseModel):
        word: LowerCase[str]

        with pytest.warns(pydantic.PydanticDeprecatedSince20):

            @pydantic.validator("word")
            def _known(cls, word: str) -> str:
                return word

    names = [one.reason.removeprefix("the validator ").partition(" ")[0] for one in typed_schema(Old).unenforced]
    assert [name.rpartition(">.")[2] for name in names] == ["Old._known", "str.islower"]


def test_a_plain_validator_may_state_its_schema() -> None:
    stated = Annotated[int, PlainValidator(int), WithJsonSchema({"type": "integer", "minimum": 3})]
    typed = typed_schema(stated)
    assert json.loads(typed.json_schema)["minimum"] == 3
    assert len(typed.unenforced) == 1


def at_least(value: int, least: int) -> int:
    assert value >= least
    return value


def test_a_partial_function_has_the_name_of_its_function() -> None:
    validator = AfterValidator(functools.partial(functools.partial(at_least), least=3))
    (code,) = typed_schema(Annotated[int, validator]).unenforced
    assert code.reason == "the validator at_least is Python code"


def test_a_callable_discriminator_is_python_code() -> None:
    def which(value: Any) -> str:
        return "i" if isinstance(value, int) else "s"

    kind = Annotated[
        Union[Annotated[int, Tag("i")], Annotated[str, Tag("s")]],
        Discriminator(which),
    ]
    typed = typed_schema(kind)
    assert [one.keyword for one in typed.unenforced] == ["discriminator"]


class Wolf(BaseModel):
    size: Literal["small", "big"] = "big"
    kind: Literal["dog", "wolf", "fox"] = "wolf"


class Bird(BaseModel):
    kind: Literal["bird"] = "bird"
    wings: int = 2


def kind_of(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)


def kind_or_bird(value: Any) -> Any:
    return kind_of(value) or "bird"


def no_kind(value: Any) -> Any:
    return "bird" if "wings" in value else "wolf"


@pytest.mark.parametrize(
    ("discriminator", "written", "not_written"),
    [
        (kind_of, '{"kind":"wolf"} {"size":"big","kind":"wolf"} {"kind":"bird"}', '{} {"size":"big"} {"kind":"fox"}'),
        (kind_or_bird, '{} {"kind":"wolf"} {"kind":"bird","wings":3} {"wings":3}', '{"size":"big"} {"kind":"fox"}'),
        (no_kind, '{"wings":3} {"size":"big"} {"kind":"fox"}', '{"kind":"cat"}'),
    ],
)
def test_a_callable_discriminator_that_looks_at_one_member(discriminator: Any, written: str, not_written: str) -> None:
    """pydantic refuses objects for which it returns no tag. Such members often have defaults."""
    kind = Annotated[
        Union[Annotated[Bird, Tag("bird")], Annotated[Wolf, Tag("wolf")]],
        Discriminator(discriminator),
    ]
    one = walker(kind)
    for text in written.split():
        assert one.accepts(text), text
        TypeAdapter(kind).validate_json(text)
    for text in not_written.split():
        assert not one.accepts(text), text


def test_recursion_ends_before_pydantic_gives_up() -> None:
    one = walker(Node)
    deep = '{"name":"a"}'
    for _ in range(64):
        deep = f'{{"name":"a","next":{deep}}}'
    assert one.accepts(deep)
    TypeAdapter(Node).validate_json(deep)
    assert not one.accepts(f'{{"name":"a","next":{deep}}}')
    anything = walker(list[Any])
    assert anything.accepts("[" * 60 + "]" * 60)
    assert not anything.accepts("[" * 80 + "]" * 80)


def test_a_large_recursive_type_has_fewer_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    for shapes, levels in ((8_000, 65), (600, 33), (10, 9)):
        monkeypatch.setattr(derive, "_FEW_SHAPES", SchemaLimits(shapes=shapes))
        assert len(json.loads(typed_schema(Node).json_schema)["$defs"]) == levels
    monkeypatch.setattr(derive, "DEFAULT_LIMITS", SchemaLimits(shapes=100))
    assert len(json.loads(typed_schema(Node).json_schema)["$defs"]) == 5


def test_what_a_recursive_type_cannot_have_is_named_once() -> None:
    class Step(BaseModel):
        name: Annotated[str, AfterValidator(str.strip)]
        next: Step | None

    assert [one.pointer for one in typed_schema(Step).unenforced] == ["Step.name"]

    class Run(BaseModel):
        call: type[int]
        parts: list[Run]

    with pytest.raises(UnsupportedConstraintError) as caught:
        typed_schema(Run)
    assert [violation.pointer for violation in caught.value.violations] == ["Run.call"]


def test_python_s_own_regular_expressions() -> None:
    class Coded(BaseModel):
        model_config = ConfigDict(regex_engine="python-re")
        code: Annotated[str, Field(pattern=r"^[^\W\d_]{2}\Z")]

    one = walker(Coded)
    assert one.accepts('{"code":"äb"}')
    assert not one.accepts('{"code":"a1"}')
    assert not one.accepts('{"code":"ab "}')


def test_aliases_by_name_only() -> None:
    class Named(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        one: Annotated[int, Field(validation_alias=AliasChoices(AliasPath("list", 0), "uno"))]

    assert walker(Named).accepts('{"uno":1}')


def test_a_default_that_pydantic_validates_is_not_left_to_it() -> None:
    class Defaults(BaseModel):
        model_config = ConfigDict(validate_default=True)
        checked: Annotated[int, Field(default="wrong")]
        plain: Annotated[int, Field(default="wrong", validate_default=False)]

    one = walker(Defaults)
    assert one.accepts('{"checked":1}')
    assert not one.accepts('{"plain":1}')


def test_a_discriminator_stands_under_its_alias() -> None:
    one = walker(Annotated[Union[Car, Bus], Field(discriminator="kind")])
    assert one.accepts('{"typ":"car","more":[1]}')
    assert one.accepts('{"typ":"coach"}')
    assert not one.accepts('{"typ":"car","kind":"bus"}')


def test_parse_reads_a_text() -> None:
    assert typed_schema(list[Cat]).parse('[{"kind":"cat","lives":3}]') == [Cat(lives=3)]


def test_an_annotation_without_a_meaning_is_an_error() -> None:
    class Unfinished(BaseModel):
        value: Missing  # type: ignore[name-defined] # noqa: F821

    for kind in (Unfinished, list[Unfinished], dataclasses.make_dataclass("Record", [("value", "Missing")])):
        with pytest.raises(InvalidConstraintError, match=r"no type that pydantic knows: name 'Missing' is not defined"):
            typed_schema(kind)
