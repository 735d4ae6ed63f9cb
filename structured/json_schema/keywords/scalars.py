"""Keywords about types, numbers and strings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Final

from draftline.structured.json_schema.document import Dialect, Location
from draftline.structured.json_schema.formats import CONTENTS, encoding_set, format_set, is_json, local_set
from draftline.structured.json_schema.keywords.clause import (
    TYPES,
    Clause,
    Expander,
    invalid,
    max_count,
    min_count,
    not_of,
    pattern_sets,
    unsupported,
)
from draftline.structured.json_schema.shapes import numbers, strings
from draftline.structured.json_schema.shapes.numbers import NumberSet
from draftline.structured.json_schema.shapes.strings import StringSet
from draftline.structured.json_schema.shapes.union import ANY_NUMBER, EVERYTHING, Shapes, unite
from draftline.structured.regular.dfa import TooComplexError

_NUMBER_KEYWORDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_STRING_KEYWORDS: Final = ("minLength", "maxLength")


def scalar_clauses(expander: Expander, location: Location) -> Iterator[Clause]:
    """The clauses of the keywords about types, numbers and strings."""
    schema = location.schema
    if "type" in schema:
        yield _type(expander, location)
    if any(keyword in schema for keyword in _NUMBER_KEYWORDS):
        yield from _numeric(location)
    if any(keyword in schema for keyword in _STRING_KEYWORDS):
        yield _lengths(location)
    if "pattern" in schema:
        yield _pattern(expander, location)
    if "format" in schema:
        yield from _format(expander, location)
    yield from _contents(expander, location)


def _type(expander: Expander, location: Location) -> Clause:
    named = location.schema["type"]
    names = named if isinstance(named, list) else [named]
    literally = location.dialect == Dialect.DRAFT4 or expander.integers == "plain"
    integers = Shapes(numbers=(NumberSet(step=Fraction(1), literal_integers=literally),))
    for name in names:
        if name != "integer" and (not isinstance(name, str) or name not in TYPES):
            raise invalid(location, "type", "the name of a type or a list of them")

    def holds() -> Shapes:
        return unite(*(integers if name == "integer" else TYPES[name] for name in names))

    def fails() -> Shapes:
        others = [shapes for name, shapes in TYPES.items() if name not in names]
        if "integer" in names and "number" not in names:
            others.remove(TYPES["number"])
            others.append(Shapes(numbers=(NumberSet(not_steps=frozenset([Fraction(1)])),)))
        return unite(*others)

    return Clause("type", holds, fails)


def _numeric(location: Location) -> Iterator[Clause]:
    schema = location.schema
    found: dict[str, Fraction] = {}
    for keyword in _NUMBER_KEYWORDS:
        if keyword in schema and not isinstance(schema[keyword], bool):  # the exclusive ones of draft 4
            value = schema[keyword]
            found[keyword] = Fraction(value) if keyword == "multipleOf" else numbers.read_number(value)
    low_open = high_open = False
    if location.dialect == Dialect.DRAFT4:
        low_open, high_open = schema.get("exclusiveMinimum") is True, schema.get("exclusiveMaximum") is True
    given = ANY_NUMBER
    if "minimum" in found:
        given = numbers.meet(given, NumberSet(low=found["minimum"], low_open=low_open))
    if "maximum" in found:
        given = numbers.meet(given, NumberSet(high=found["maximum"], high_open=high_open))
    if "exclusiveMinimum" in found:
        given = numbers.meet(given, NumberSet(low=found["exclusiveMinimum"], low_open=True))
    if "exclusiveMaximum" in found:
        given = numbers.meet(given, NumberSet(high=found["exclusiveMaximum"], high_open=True))
    if "multipleOf" in found:
        given = numbers.meet(given, NumberSet(step=found["multipleOf"]))
    if given == ANY_NUMBER:
        return
    keyword = next(keyword for keyword in reversed(_NUMBER_KEYWORDS) if keyword in found)
    inside = () if given.is_empty() else (given,)
    yield Clause(
        keyword,
        lambda: unite(not_of("number"), Shapes(numbers=inside)),
        lambda: Shapes(numbers=tuple(numbers.outside(given))),
    )


def _string_clause(keyword: str, holding: StringSet, others: StringSet) -> Clause:
    """The clause of strings that a set holds; those outside of ``others`` fail it."""
    return Clause(
        keyword,
        lambda: unite(not_of("string"), _some_of([holding])),
        lambda: _some_of(strings.outside(others)),
    )


def _some_of(sets: Iterable[StringSet]) -> Shapes:
    """The strings of all sets. Shapes hold no empty ones: no string fails the pattern ``""``, say."""
    return Shapes(strings=tuple(one for one in sets if not one.is_empty()))


def _lengths(location: Location) -> Clause:
    minimum = min_count(location, "minLength")
    keyword = "maxLength" if "maxLength" in location.schema else "minLength"
    given = StringSet(minimum, max_count(location, "maxLength"))
    return _string_clause(keyword, given, given)


def _pattern(expander: Expander, location: Location) -> Clause:
    sets = pattern_sets(expander, location, "pattern", location.schema["pattern"])
    if sets is None:  # nothing is known of it
        return Clause("pattern", lambda: EVERYTHING, lambda: EVERYTHING)
    return _string_clause("pattern", *sets)


def _format(expander: Expander, location: Location) -> Iterator[Clause]:
    name = location.schema["format"]
    if name == "double":
        doubles = unite(not_of("number"), Shapes(numbers=(NumberSet(binary64=True),)))
        yield Clause("format", lambda: doubles, None)
    given, most = expander.reading.format_holds(name), expander.reading.format_fails(name)
    if given is None or most is None:
        return
    if _is_local_time(expander, location):
        expander.annotate(
            location.pointer, "format", "the pattern beside it has no offset from UTC, and the format has"
        )
    else:
        yield _string_clause("format", given, most)


def _is_local_time(expander: Expander, location: Location) -> bool:
    """Whether a time's pattern allows no offset, which its format requires. The pattern counts then, as for zod.

    To the standard, formats are annotations that validators may ignore.
    """
    form, local = format_set(location.schema["format"]), local_set(location.schema["format"])
    if form is None or local is None or "pattern" not in location.schema:
        return False
    sets = pattern_sets(expander, location, "pattern", location.schema["pattern"])
    if sets is None:
        return False
    try:
        return strings.meet(form, sets[0]).is_empty() and not strings.meet(local, sets[0]).is_empty()
    except TooComplexError:
        return False


def _contents(expander: Expander, location: Location) -> Iterator[Clause]:
    """What a string contains. Draft 7 may assert encodings and JSON. All else is an annotation, which makes no value invalid."""
    asserted = location.dialect <= Dialect.DRAFT7
    for keyword, (since, reason) in CONTENTS.items():
        if keyword not in location.schema or location.dialect < since:
            continue
        said = location.schema[keyword]
        encoded = encoding_set(said) if asserted and keyword == "contentEncoding" else None
        if encoded is not None:
            yield replace(_string_clause(keyword, encoded, encoded), fails=None)
        elif asserted and keyword == "contentMediaType" and is_json(said):
            yield unsupported(expander, location, keyword, reason)
        else:
            expander.annotate(location.pointer, keyword, reason)
