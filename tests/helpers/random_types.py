"""Random types for structured output, drawn by hypothesis: models of pydantic and their kin, with all that they may hold.

They hold no validators in Python. `Schema` may still refuse one of them, by name.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Optional, TypeVar, Union, get_origin

import pydantic
from hypothesis import reject
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    create_model,
)
from pydantic_core import SchemaError
from typing_extensions import TypedDict

_NUMBERS = itertools.count()


class Colour(enum.Enum):
    RED = "red"
    GREEN = "grün"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9007199254740993


class Mixed(enum.Enum):
    TEXT = "1"
    NUMBER = 1
    HALF = 0.5
    NOTHING = None


class Node(BaseModel):
    """Recurses through a list, a dict and an optional field."""

    name: Annotated[str, Field(max_length=3)]
    children: list[Node] = []
    by_name: dict[str, Node] = {}
    next: Node | None = None


class Left(BaseModel):
    right: Right | None


class Right(BaseModel):
    left: list[Left]


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog", "wolf"]
    good: bool = True


class Car(BaseModel):
    model_config = ConfigDict(extra="allow")
    kind: Annotated[Literal["car"], Field(alias="typ")]
    wheels: int = 4


class Bus(BaseModel):
    kind: Annotated[Literal["bus", "coach"], Field(alias="typ")]


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0
    hidden: int = dataclasses.field(default=3, init=False)


@pydantic.dataclasses.dataclass(config=ConfigDict(str_strip_whitespace=True, strict=True), frozen=True)
class Label:
    text: Annotated[str, Field(min_length=1)]
    level: Level = Level.LOW


class Movie(TypedDict):
    title: str
    year: NotRequired[Annotated[int, Field(gt=1887)]]


class Pair(NamedTuple):
    left: int
    right: str = "x"


Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    items: list[Item]
    total: Annotated[int, Field(ge=0)]


class Tags(pydantic.RootModel[list[str]]):
    pass


class Coded(BaseModel):
    model_config = ConfigDict(val_json_bytes="base64", ser_json_bytes="base64")
    data: Annotated[bytes, Field(min_length=1, max_length=5)]


class Aliased(BaseModel):
    one: Annotated[int, Field(alias="uno")]
    two: Annotated[str, Field(validation_alias=AliasChoices("zwei", AliasPath("deep", "two")))] = ""
    three: Annotated[bool, Field(validation_alias=AliasPath("deep", "three", 1))]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)
    __pydantic_extra__: dict[str, int] = Field(init=False)
    known: Annotated[str, Field(alias="bekannt", max_length=2)]


_PATTERNS = [
    r"^[A-Z]{2}\d{2,4}$",
    r"\d+",
    r"^(?i)inv-[a-z]+$",
    r"^\p{Lu}\p{Ll}+(?: \p{Lu}\p{Ll}+)?$",
    r"^[\w.-]+$",
    r"^[[:alpha:]&&[^x]]+$",
    r"^(?P<a>a|b)+?\z",
    r"^\S(?:.*\S)?$",
    r"^[^\d\s]{1,3}$",
]


def _within(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Bounds between which there are values."""
    low, high = sorted([draw(values), draw(values)])
    bounds: dict[str, Any] = {}
    if draw(st.booleans()):
        bounds["ge" if low == high or draw(st.booleans()) else "gt"] = low
    if draw(st.booleans()):
        bounds["le" if low == high or draw(st.booleans()) else "lt"] = high
    return bounds


@st.composite
def _ints(draw: st.DrawFn) -> Any:
    bounds = _within(draw, st.sampled_from([-(10**18), -1000, -7, 0, 3, 250, 10**15, 10**22]))
    if draw(st.integers(0, 4)) == 0:
        bounds["multiple_of"] = draw(st.sampled_from([2, 5, 7]))
    return Annotated[int, Field(**bounds)]


@st.composite
def _floats(draw: st.DrawFn) -> Any:
    bounds = _within(draw, st.sampled_from([-1e20, -3.5, -0.1, 0, 1e-30, 0.3, 2, 1e16, 1e17, 5e18, 1e300, 2.5e307]))
    if draw(st.integers(0, 4)) == 0:
        bounds["multiple_of"] = draw(st.sampled_from([0.5, 0.01, 2]))
    if draw(st.booleans()):
        bounds["allow_inf_nan"] = False
    return Annotated[float, Field(**bounds)]


@st.composite
def _decimals(draw: st.DrawFn) -> Any:
    bounds = _within(draw, st.sampled_from([Decimal("-1000.5"), Decimal("-0.05"), 0, Decimal("0.01"), 99, 1000]))
    if draw(st.booleans()):
        bounds["max_digits"] = draw(st.integers(5, 14))
    if draw(st.booleans()):
        bounds["decimal_places"] = draw(st.integers(2, 4))
    if draw(st.integers(0, 4)) == 0:
        bounds["multiple_of"] = draw(st.sampled_from([Decimal("0.01"), Decimal("0.05"), 1]))
    return Annotated[Decimal, Field(**bounds)]


@st.composite
def _strings(draw: st.DrawFn) -> Any:
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["pattern"] = draw(st.sampled_from(_PATTERNS))
    if draw(st.booleans()):
        options["max_length"] = draw(st.integers(6, 12))
        options["min_length"] = draw(st.integers(0, 2))
    for name in ("strip_whitespace", "to_upper", "to_lower"):
        if draw(st.integers(0, 3)) == 0:
            options[name] = True
    return Annotated[str, StringConstraints(**options)]


@st.composite
def _limited_unions(draw: st.DrawFn) -> Any:
    kinds = draw(st.sampled_from([Union[int, float], Union[int, float, None], Union[int, str], Union[float, Decimal]]))
    return Annotated[kinds, Field(**_within(draw, st.sampled_from([-7, 0, 2.5, 1000])))]


@st.composite
def _temporal(draw: st.DrawFn) -> Any:
    days = [date(1, 1, 1), date(1999, 12, 31), date(2024, 2, 29), date(2024, 7, 1), date(9999, 12, 31)]
    moments = [
        datetime(1, 1, 1),
        datetime(1969, 7, 20, 20, 17, 40, 500),
        datetime(2024, 2, 29, 23, 59, 59, 999999),
        datetime(2031, 1, 1),
    ]
    zoned = [datetime(1970, 1, 1, tzinfo=UTC), datetime(2024, 3, 1, 1, tzinfo=timezone(timedelta(hours=2)))]
    times = [time(0, 0), time(8, 30), time(17, 0, 0, 1), time(23, 59, 59, 999999)]
    spans = [timedelta(days=-2), timedelta(0), timedelta(seconds=1.5), timedelta(hours=36), timedelta(days=400)]
    kind, values = draw(
        st.sampled_from([(date, days), (datetime, moments), (datetime, zoned), (time, times), (timedelta, spans)])
    )
    return Annotated[kind, Field(**_within(draw, st.sampled_from(values)))]


LEAVES = [
    str,
    int,
    float,
    bool,
    None,
    Decimal,
    date,
    time,
    datetime,
    timedelta,
    uuid.UUID,
    re.Pattern,
    bytes,
    Fraction,
    complex,
    Path,
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    pydantic.IPvAnyAddress,
    pydantic.AwareDatetime,
    pydantic.NaiveDatetime,
    pydantic.PastDate,
    pydantic.PastDatetime,
    pydantic.UUID1,
    pydantic.UUID4,
    pydantic.HttpUrl,
    pydantic.AnyUrl,
    pydantic.PostgresDsn,
    pydantic.SecretStr,
    pydantic.SecretBytes,
    pydantic.Base64Bytes,
    pydantic.Base64UrlBytes,
    pydantic.Base64Str,
    pydantic.ByteSize,
    pydantic.StrictInt,
    pydantic.StrictStr,
    pydantic.StrictBool,
    pydantic.StrictFloat,
    pydantic.FiniteFloat,
    pydantic.PositiveInt,
    pydantic.NegativeFloat,
    pydantic.JsonValue,
    Any,
    Colour,
    Level,
    Mixed,
    (Literal["a", "b c", 'q"\\', 1, True] | None),
    Annotated[bytes, Field(min_length=2, max_length=4)],
    pydantic.Json[int],
    pydantic.Json[list[bool]],
]

try:
    import email_validator  # noqa: F401
except ImportError:
    pass
else:
    LEAVES += [pydantic.EmailStr, pydantic.NameEmail]

_STRUCTURES = [Node, Left, Cat, Point, Label, Movie, Pair, Tags, Coded, Aliased, Open]

leaves = st.one_of(
    st.sampled_from(LEAVES),
    st.sampled_from(LEAVES),
    _ints(),
    _floats(),
    _decimals(),
    _strings(),
    _temporal(),
    _limited_unions(),
)
"""Scalars and other types without parts."""

_KEYS = st.sampled_from(
    [
        str,
        int,
        float,
        Decimal,
        date,
        uuid.UUID,
        Colour,
        Level,
        bool,
        Literal["x", "y"],
        Annotated[str, Field(pattern="^k")],
    ]
)
_HASHABLE = st.one_of(
    st.sampled_from(
        [str, int, date, Decimal, Colour, Label, tuple[int, str], frozenset[bool], uuid.UUID, Literal[1, 2, 3]]
    ),
    _strings(),
)


def _lengths(draw: st.DrawFn, most: int = 3) -> dict[str, int]:
    low = draw(st.integers(0, most))
    lengths = {"min_length": low} if draw(st.booleans()) else {}
    return {**lengths, "max_length": draw(st.integers(low, most + 2))} if draw(st.booleans()) else lengths


@st.composite
def _containers(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Any:
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return Annotated[list[draw(inner)], Field(**_lengths(draw))]
    if kind == 1:
        return Annotated[draw(st.sampled_from([set, frozenset]))[draw(_HASHABLE)], Field(**_lengths(draw, 1))]
    if kind == 2:
        return Annotated[dict[draw(_KEYS), draw(inner)], Field(**_lengths(draw, 1))]
    if kind == 3:
        return tuple[draw(inner), draw(inner)]
    if kind == 4:
        return tuple[draw(inner), ...]
    if kind == 5:
        return Optional[draw(inner)]
    if kind == 6:
        union = draw(inner)
        if get_origin(union) is not Union:
            return union
        return Annotated[union, Field(union_mode=draw(st.sampled_from(["smart", "left_to_right"])))]
    if kind == 7:
        choices = draw(st.sampled_from([Union[Cat, Dog], Union[Car, Bus]]))
        return Annotated[choices, Field(discriminator="kind")]
    if kind == 8:
        return Page[draw(inner)]
    one = draw(inner)
    # Before 2.14, pydantic rejects all dates and the like in these if it is strict.
    ordered = one if pydantic.VERSION >= "2.14" else int
    return draw(
        st.sampled_from(
            [
                Sequence[one],
                Mapping[str, one],
                collections.deque[ordered],
                collections.OrderedDict[str, ordered],
                Annotated[Sequence[one], Field(min_length=1, max_length=2)],
            ]
        )
    )


@st.composite
def models(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Any:
    """Models of pydantic, dataclasses and TypedDicts of a few fields."""
    names = draw(
        st.lists(st.sampled_from(["a", "b", "id", "naïve", "total_sum", "x"]), min_size=1, max_size=4, unique=True)
    )
    number = next(_NUMBERS)
    kind = draw(st.integers(0, 5))
    if kind == 0:
        fields = [(name, draw(inner), dataclasses.field(default=None)) for name in names]
        return dataclasses.make_dataclass(f"Data{number}", [field[: draw(st.integers(2, 3))] for field in fields[:1]])
    if kind == 1:
        return TypedDict(f"Dict{number}", {name: draw(inner) for name in names}, total=draw(st.booleans()))  # type: ignore[operator]
    fields = {}
    for name in names:
        options: dict[str, Any] = {}
        if draw(st.integers(0, 3)) == 0:
            options["alias"] = f"{name}-{draw(st.sampled_from(['x', 'é', 'a b']))}"
        if draw(st.integers(0, 2)) == 0:
            options["default"] = None
        fields[name] = (draw(inner), Field(**options))
    config = ConfigDict(
        strict=draw(st.booleans()),
        extra=draw(st.sampled_from(["ignore", "ignore", "forbid", "allow"])),
        populate_by_name=draw(st.booleans()),
        str_strip_whitespace=draw(st.booleans()),
        **draw(st.sampled_from([{}, {"allow_inf_nan": False}])),
        use_enum_values=draw(st.booleans()),
        frozen=draw(st.booleans()),
        validate_default=draw(st.booleans()),
    )
    try:
        return create_model(f"Model{number}", __config__=config, **fields)
    except (pydantic.errors.PydanticUserError, SchemaError, RuntimeError):
        return reject()  # pydantic allows not all of these together


def types(depth: int = 2) -> st.SearchStrategy[Any]:
    """Types that nest up to so many levels of arrays, objects and unions."""
    if depth == 0:
        return st.one_of(leaves, leaves, leaves, st.sampled_from(_STRUCTURES))
    inner = types(depth - 1)
    return st.one_of(leaves, leaves, st.sampled_from(_STRUCTURES), _containers(inner), models(inner))


whole_models = models(types(2))
"""What a user would pass to `Schema`."""
