"""enum and const, nested values included."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from draftline.structured.json_schema.document import Dialect, Location
from draftline.structured.json_schema.keywords.clause import (
    Clause,
    Expander,
    absent,
    is_number,
    not_of,
)
from draftline.structured.json_schema.parsing import Json
from draftline.structured.json_schema.shapes import numbers
from draftline.structured.json_schema.shapes.arrays import ANY_ARRAY, ArrayShape
from draftline.structured.json_schema.shapes.demands import ANY, NEVER, Demand, Demands
from draftline.structured.json_schema.shapes.numbers import NumberSet
from draftline.structured.json_schema.shapes.objects import ANY_OBJECT, Members, ObjectShape, settle_object
from draftline.structured.json_schema.shapes.strings import ALL_STRINGS, StringSet
from draftline.structured.json_schema.shapes.union import ANY_NUMBER, Shapes, intersect, unite
from draftline.structured.json_schema.spelling import IntegerSpelling


def value_clauses(expander: Expander, location: Location) -> Iterator[Clause]:
    """The clauses of enum and const."""
    schema = location.schema
    if "enum" in schema:
        yield _values(expander, location, "enum", schema["enum"])
    if "const" in schema and location.dialect >= Dialect.DRAFT6:
        yield _values(expander, location, "const", [schema["const"]])


def _values(expander: Expander, location: Location, keyword: str, values: list[Json]) -> Clause:
    expander.count_values(location, keyword, len(values))
    texts = frozenset(value for value in values if isinstance(value, str))
    scalars = Shapes(
        any(value is None for value in values),
        frozenset(value for value in values if isinstance(value, bool)),
        tuple(dict.fromkeys(_point(value, expander.integers) for value in values if is_number(value))),
        (StringSet(only=texts),) if texts else (),
    )
    deep = [value for value in values if isinstance(value, list | dict)]

    def holds() -> Shapes:
        return unite(scalars, *(_constant(expander, location, value) for value in deep))

    def fails() -> Shapes:
        without = Shapes(
            not scalars.null,
            frozenset([False, True]) - scalars.booleans,
            (ANY_NUMBER,),
            tuple(StringSet(without=one.only or frozenset()) for one in scalars.strings) or (ALL_STRINGS,),
            (ANY_ARRAY,),
            (ANY_OBJECT,),
        )
        for point in scalars.numbers:
            away = Shapes(numbers=tuple(numbers.outside(point)))
            without = intersect(without, unite(not_of("number"), away))
        for value in deep:
            without = intersect(without, _not_constant(expander, location, value))
        return without

    return Clause(keyword, holds, fails)


def _constant(expander: Expander, location: Location, value: Json) -> Shapes:
    """An array or an object, described by its items or members."""
    if isinstance(value, list):
        items = tuple(expander.constant(location, item) for item in value)
        return Shapes(arrays=(ArrayShape(items, NEVER, len(items), len(items)),))
    named = tuple((name, expander.constant(location, member)) for name, member in value.items())
    return Shapes(objects=(ObjectShape(named, frozenset(value), ()),))


def _not_constant(expander: Expander, location: Location, value: Json) -> Shapes:
    def other(part: Json) -> Demands:
        (demand,) = expander.constant(location, part)
        return frozenset([Demand(demand.location, holds=False)])

    if isinstance(value, list):
        arrays: list[ArrayShape] = [ArrayShape(min_items=len(value) + 1)]
        if value:
            arrays.append(ArrayShape((), ANY, 0, len(value) - 1))
        for index, item in enumerate(value):
            arrays.append(ArrayShape((*[ANY] * index, other(item)), ANY, index + 1))
        return unite(not_of("array"), Shapes(arrays=tuple(arrays)))
    objects = [absent(name) for name in value]
    for name, member in value.items():
        objects.append(ObjectShape(((name, other(member)),), frozenset([name])))
    objects.extend(settle_object(ANY_OBJECT, (Members(StringSet(without=frozenset(value)), ANY),)))
    return unite(not_of("object"), Shapes(objects=tuple(objects)))


def _point(value: int | Decimal, integers: IntegerSpelling) -> NumberSet:
    exact = numbers.read_number(value)
    return NumberSet(low=exact, high=exact, literal_integers=integers == "plain" and exact.denominator == 1)
