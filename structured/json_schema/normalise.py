"""From schemas to shapes: what each keyword says, and what its opposite says.

Every keyword is a *clause* with two readings, the values that satisfy it and those that do not. A schema is the intersection
of its clauses, its negation the union of their negations; so `not`, `oneOf`, `if` and dependencies need no special cases. A clause that
cannot be read exactly is reported and left out.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Final

from draftline.structured.errors import InvalidConstraintError, Violation
from draftline.structured.json_schema import numbers, strings
from draftline.structured.json_schema.document import Document, Draft, Json, Location, ReferenceError_
from draftline.structured.json_schema.formats import UNENFORCEABLE, format_set
from draftline.structured.json_schema.limits import SchemaLimits
from draftline.structured.json_schema.numbers import NumberSet
from draftline.structured.json_schema.shapes import (
    ANY,
    ANY_ARRAY,
    ANY_NUMBER,
    ANY_OBJECT,
    EVERYTHING,
    NEVER,
    NOTHING,
    ArrayShape,
    Contains,
    Demand,
    Demands,
    Members,
    ObjectShape,
    Shapes,
    TooManyShapesError,
    array_within,
    both,
    intersect,
    object_within,
    settle_array,
    settle_object,
    unite,
    widest,
)
from draftline.structured.json_schema.strings import ALL_STRINGS, StringSet
from draftline.structured.regular import ecma
from draftline.structured.regular.automaton import TooComplexError, without_anchors

_TYPES: Final = {
    "null": Shapes(null=True),
    "boolean": Shapes(booleans=frozenset([False, True])),
    "number": Shapes(numbers=(ANY_NUMBER,)),
    "string": Shapes(strings=(ALL_STRINGS,)),
    "array": Shapes(arrays=(ANY_ARRAY,)),
    "object": Shapes(objects=(ANY_OBJECT,)),
}
_NUMBER_KEYWORDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_STRING_KEYWORDS: Final = ("minLength", "maxLength")
_OBJECT_KEYWORDS: Final = [
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
    "propertyNames",
]
_MAX_NAME_CLASSES: Final = 64
_MAX_DIGITS: Final = 400
_DEPTH: Final = 6
"""How far emptiness is looked for in values of values, when that only saves work."""


class _InProgressError(Exception):
    """What a value contains is just being worked out."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A keyword (or a group that is read together) and its two readings.

    Attributes:
        keyword: for reports.
        holds: the values that satisfy it.
        fails: the values that do not; None where their set cannot be said exactly.
    """

    keyword: str
    holds: Callable[[], Shapes]
    fails: Callable[[], Shapes] | None


class Normaliser:
    """Expands demands on values to shapes, and remembers what it has expanded.

    Attributes:
        violations: what could not be enforced so far, by pointer and keyword.
    """

    def __init__(self, document: Document, limits: SchemaLimits) -> None:
        self._document = document
        self._limits = limits
        self._expanded: dict[Demand, Shapes] = {}
        self._joined: dict[Demands, Shapes] = {}
        self._expanding: list[Demand] = []
        self._guard = 0
        self._clauses: dict[Location, list[Clause]] = {}
        self._constants: dict[str, Location] = {}
        self._empty: dict[Demands, bool] = {}
        self._enum_values = 0
        self._steps = 0
        self.violations: dict[tuple[str, str], Violation] = {}

    def report(self, pointer: str, keyword: str, reason: str) -> None:
        """Note something that is not enforced, in or within the schema at ``pointer``."""
        said = self._document.says(pointer, keyword)
        where = f"{pointer}/{keyword}" if said else pointer
        self.violations.setdefault((where, keyword), Violation(where, keyword, reason))

    # --- demands ----------------------------------------------------------------------------------------------------

    def demand(self, location: Location, holds: bool = True) -> Demands:
        """What a value must be for a schema to hold, or not to hold."""
        schema = location.schema
        for _ in range(100):
            if isinstance(schema, bool):
                return ANY if schema == holds else NEVER
            reference = schema.get("$ref")
            alone = location.draft <= Draft.DRAFT7 or not any(self._clauses_of(location)[1:])
            if not isinstance(reference, str) or not alone:
                break
            try:
                location = self._document.resolve(location, reference)
            except ReferenceError_:
                break
            schema = location.schema
        if not isinstance(schema, bool) and not self._clauses_of(location):
            return ANY if holds else NEVER
        return frozenset([Demand(location, holds)])

    def expand(self, demands: Demands) -> Shapes:
        """The values that meet all demands."""
        known = self._joined.get(demands)
        if known is None:
            known = EVERYTHING
            # What must hold first: it is what most of the cases of a negation contradict.
            for demand in sorted(demands, key=lambda one: (not one.holds, one.order)):
                known = self._meet(known, self._expand_one(demand), demand)
            self._joined[demands] = known
        return known

    def _meet(self, one: Shapes, other: Shapes, demand: Demand) -> Shapes:
        self._steps += 1
        if self._steps > self._limits.shapes:
            raise InvalidConstraintError(f"the schema takes more than {self._limits.shapes} intersections to normalise")
        try:
            joint = intersect(one, other)
            return joint if demand.holds else self._simplified(joint)
        except (TooManyShapesError, TooComplexError) as error:
            self.report(demand.location.pointer, "allOf", f"its intersection with what else holds here has {error}")
            return one

    def _expand_one(self, demand: Demand) -> Shapes:
        known = self._expanded.get(demand)
        if known is not None:
            return known
        location = demand.location
        if isinstance(location.schema, bool):
            return EVERYTHING if location.schema == demand.holds else NOTHING
        if demand in self._expanding:
            if self._expanding.index(demand) < self._guard:
                raise _InProgressError
            self.report(location.pointer, "$ref", "it refers to itself with nothing in between")
            return EVERYTHING
        self._expanding.append(demand)
        try:
            shapes = EVERYTHING if demand.holds else NOTHING
            for clause in self._clauses_of(location):
                if demand.holds:
                    shapes = self._meet(shapes, self._read(location, clause, clause.holds), demand)
                elif clause.fails is None:
                    reason = "what does not satisfy it has no exact form, as needed below not, oneOf or if"
                    self.report(location.pointer, clause.keyword, reason)
                    shapes = EVERYTHING
                else:
                    shapes = self._unite(location, clause.keyword, [shapes, self._read(location, clause, clause.fails)])
        finally:
            self._expanding.pop()
        self._expanded[demand] = shapes
        return shapes

    def _read(self, location: Location, clause: Clause, reading: Callable[[], Shapes]) -> Shapes:
        try:
            return reading()
        except (TooManyShapesError, TooComplexError) as error:
            self.report(location.pointer, clause.keyword, f"it is too complex: {error}")
            return EVERYTHING

    def _unite(self, location: Location, keyword: str, sets: Iterable[Shapes]) -> Shapes:
        try:
            return unite(*sets)
        except TooManyShapesError as error:
            self.report(location.pointer, keyword, f"it has {error}")
            return EVERYTHING

    def is_empty(self, demands: Demands, depth: int = _DEPTH) -> bool:
        """Whether it is proven that no value meets the demands; a no may only mean that no proof was found."""
        if demands == NEVER:
            return True
        if not demands or depth == 0:
            return False
        known = self._empty.get(demands)
        if known is None:
            # What is being expanded further out is not known yet, and is not an endless loop either: it is inside a value.
            outer, self._guard = self._guard, len(self._expanding) if depth < _DEPTH else self._guard
            self._empty[demands] = False
            try:
                known = self._none(self.expand(demands), depth)
                self._empty[demands] = known
            except _InProgressError:
                del self._empty[demands]
                if depth == _DEPTH:
                    raise
                return False
            finally:
                self._guard = outer
        return known

    def _none(self, shapes: Shapes, depth: int) -> bool:
        if shapes.null or shapes.booleans or shapes.numbers or shapes.strings:
            return False
        return all(self._no_array(shape, depth) for shape in shapes.arrays) and all(
            self._no_object(shape, depth) for shape in shapes.objects
        )

    def _no_array(self, shape: ArrayShape, depth: int) -> bool:
        needed = {shape.item(index) for index in range(min(shape.min_items, len(shape.prefix) + 1))}
        return any(self.is_empty(one, depth - 1) for one in needed)

    def _no_object(self, shape: ObjectShape, depth: int) -> bool:
        return any(name in shape.required and self.is_empty(value, depth - 1) for name, value in shape.named) or any(
            self.is_empty(members.value, depth - 1) for members in shape.some
        )

    def _simplified(self, shapes: Shapes) -> Shapes:
        """The same values, without cases that are empty or within another: negations bring many of these."""
        objects: list[ObjectShape] = []
        for shape in shapes.objects:
            named = tuple((name, self._without_idle(value)) for name, value in shape.named)
            objects.extend(settle_object(replace(shape, named=named, some=()), shape.some))
        arrays = [settled for shape in shapes.arrays if (settled := self._without_idle_counts(shape)) is not None]
        return replace(shapes, arrays=widest(arrays, array_within), objects=widest(objects, object_within))

    def _without_idle_counts(self, shape: ArrayShape) -> ArrayShape | None:
        """The same arrays, where counts that every item meets are lengths, and items that cannot be are NEVER."""
        shape = replace(
            shape,
            prefix=tuple(self._without_idle(value) for value in shape.prefix),
            rest=self._without_idle(shape.rest),
        )
        least = shape.min_items
        counts: list[Contains] = []
        for one in shape.contains:
            items = {shape.item(index) for index in range(one.start, len(shape.prefix))} | {shape.rest}
            possible = [item for item in items if self._without_idle(both(item, one.value)) != NEVER]
            if not possible:
                if one.low > 0:
                    return None
            elif one.high is None and all(self._without_idle(both(item, one.value)) == item for item in items):
                least = max(least, one.start + one.low)
            else:
                counts.append(one)
        return settle_array(replace(shape, min_items=least, contains=tuple(counts)))

    def _without_idle(self, value: Demands) -> Demands:
        """Demands without those negations that the others imply already; NEVER where they contradict one another."""
        negated = [demand for demand in value if not demand.holds]
        if not negated or len(value) == 1:
            return value
        for demand in sorted(negated, key=lambda one: one.order):
            others = value - {demand}
            if others and self.is_empty(others | {Demand(demand.location)}, _DEPTH - 1):
                value = others
        return NEVER if self.is_empty(value, _DEPTH - 1) else value

    # --- clauses ----------------------------------------------------------------------------------------------------

    def _clauses_of(self, location: Location) -> list[Clause]:
        known = self._clauses.get(location)
        if known is None:
            known = self._clauses[location] = list(self._make_clauses(location))
        return known

    def _make_clauses(self, location: Location) -> Iterator[Clause]:
        schema = location.schema
        if isinstance(schema, bool):
            return
        if "$ref" in schema:
            yield self._reference(location, "$ref")
            if location.draft <= Draft.DRAFT7:
                return  # where a reference stands, its siblings mean nothing
        if "$dynamicRef" in schema and location.draft >= Draft.DRAFT2020:
            yield self._reference(location, "$dynamicRef")
        if "$recursiveRef" in schema and location.draft == Draft.DRAFT2019:
            yield self._reference(location, "$recursiveRef")
        if "type" in schema:
            yield self._type(location)
        if "enum" in schema:
            yield self._values(location, "enum")
        if "const" in schema and location.draft >= Draft.DRAFT6:
            yield self._values(location, "const")
        if any(keyword in schema for keyword in _NUMBER_KEYWORDS):
            yield from self._numeric(location)
        if any(keyword in schema for keyword in _STRING_KEYWORDS):
            yield self._lengths(location)
        if "pattern" in schema:
            yield self._pattern(location)
        if "format" in schema:
            yield from self._format(location)
        if any(keyword in schema for keyword in _OBJECT_KEYWORDS):
            yield self._object(location)
        yield from self._array(location)
        yield from self._applicators(location)
        yield from self._dependencies(location)
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword in schema and location.draft >= Draft.DRAFT2019 and schema[keyword] is not True:
                yield self._unsupported(location, keyword, "it depends on which other schemas have looked at a value")

    def _unsupported(self, location: Location, keyword: str, reason: str) -> Clause:
        def drop() -> Shapes:
            self.report(location.pointer, keyword, reason)
            return EVERYTHING

        return Clause(keyword, drop, drop)

    def _invalid(self, location: Location, keyword: str, expected: str) -> InvalidConstraintError:
        return InvalidConstraintError(f"{location.pointer}/{keyword}: expected {expected}")

    def _reference(self, location: Location, keyword: str) -> Clause:
        reference = location.schema[keyword]
        if not isinstance(reference, str):
            raise self._invalid(location, keyword, "a string")
        try:
            target = self._document.resolve(location, reference)
        except ReferenceError_ as error:
            return self._unsupported(location, keyword, str(error))
        if keyword == "$dynamicRef" and isinstance(target.schema, dict):
            anchor = target.schema.get("$dynamicAnchor")
            by_anchor = isinstance(anchor, str) and reference.partition("#")[2] == anchor
            if by_anchor and len(self._document.dynamic_anchors(str(anchor))) > 1:
                return self._unsupported(
                    location, keyword, "which of several targets it means depends on the path to it"
                )
        if keyword == "$recursiveRef" and isinstance(target.schema, dict) and target.schema.get("$recursiveAnchor"):
            return self._unsupported(location, keyword, "which target it means depends on the path to it")
        return Clause(
            keyword,
            lambda: self.expand(self.demand(target)),
            lambda: self.expand(self.demand(target, holds=False)),
        )

    def _type(self, location: Location) -> Clause:
        named = location.schema["type"]
        names = named if isinstance(named, list) else [named]
        integers = Shapes(
            numbers=(NumberSet(step=Fraction(1), literal_integers=location.draft == Draft.DRAFT4),),
        )
        for name in names:
            if name != "integer" and (not isinstance(name, str) or name not in _TYPES):
                raise self._invalid(location, "type", "the name of a type or a list of them")

        def holds() -> Shapes:
            return unite(*(integers if name == "integer" else _TYPES[name] for name in names))

        def fails() -> Shapes:
            others = [shapes for name, shapes in _TYPES.items() if name not in names]
            if "integer" in names and "number" not in names:
                others.remove(_TYPES["number"])
                others.append(Shapes(numbers=(NumberSet(not_steps=frozenset([Fraction(1)])),)))
            return unite(*others)

        return Clause("type", holds, fails)

    # --- values -----------------------------------------------------------------------------------------------------

    def _values(self, location: Location, keyword: str) -> Clause:
        given = location.schema[keyword]
        if keyword == "enum" and not isinstance(given, list):
            raise self._invalid(location, keyword, "a list")
        values: list[Json] = given if keyword == "enum" else [given]
        self._enum_values += len(values)
        if self._enum_values > self._limits.enum_values:
            raise InvalidConstraintError(
                f"{location.pointer}/{keyword}: the schema has more than {self._limits.enum_values} enum values"
            )
        scalars = Shapes(
            any(value is None for value in values),
            frozenset(value for value in values if isinstance(value, bool)),
            tuple(dict.fromkeys(_point(value) for value in values if _is_number(value))),
            _listed(frozenset(value for value in values if isinstance(value, str))),
        )
        deep = [value for value in values if isinstance(value, list | dict)]

        def holds() -> Shapes:
            return unite(scalars, *(self._constant(location, value) for value in deep))

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
                without = intersect(without, unite(_not_of("number"), away))
            for value in deep:
                without = intersect(without, self._not_constant(location, value))
            return without

        return Clause(keyword, holds, fails)

    def _constant_demand(self, location: Location, value: Json) -> Demands:
        written = _canonical(value)
        known = self._constants.get(written)
        if known is None:
            pointer = f"{location.pointer}/const#{len(self._constants)}"
            known = self._constants[written] = Location(pointer, {"const": value}, "", Draft.DRAFT2020)
        return frozenset([Demand(known)])

    def _constant(self, location: Location, value: Json) -> Shapes:
        """An array or an object, said by its items or members."""
        if isinstance(value, list):
            items = tuple(self._constant_demand(location, item) for item in value)
            return Shapes(arrays=(ArrayShape(items, NEVER, len(items), len(items)),))
        named = tuple((name, self._constant_demand(location, member)) for name, member in value.items())
        return Shapes(objects=(ObjectShape(named, frozenset(value), ()),))

    def _not_constant(self, location: Location, value: Json) -> Shapes:
        def other(part: Json) -> Demands:
            (demand,) = self._constant_demand(location, part)
            return frozenset([Demand(demand.location, holds=False)])

        if isinstance(value, list):
            arrays: list[ArrayShape] = [ArrayShape(min_items=len(value) + 1)]
            if value:
                arrays.append(ArrayShape((), ANY, 0, len(value) - 1))
            for index, item in enumerate(value):
                arrays.append(ArrayShape((*[ANY] * index, other(item)), ANY, index + 1))
            return unite(_not_of("array"), Shapes(arrays=tuple(arrays)))
        objects = [shape for name in value for shape in _absent(name)]
        for name, member in value.items():
            objects.append(ObjectShape(((name, other(member)),), frozenset([name])))
        objects.extend(settle_object(ANY_OBJECT, (Members(StringSet(without=frozenset(value)), ANY),)))
        return unite(_not_of("object"), Shapes(objects=tuple(objects)))

    # --- numbers ----------------------------------------------------------------------------------------------------

    def _numeric(self, location: Location) -> Iterator[Clause]:
        schema = location.schema
        found: dict[str, Fraction] = {}
        for keyword in _NUMBER_KEYWORDS:
            value = schema.get(keyword)
            if value is None or (location.draft == Draft.DRAFT4 and keyword.startswith("exclusive")):
                continue
            if not _is_number(value) or (keyword == "multipleOf" and value <= 0):
                raise self._invalid(location, keyword, "a number")
            if value and abs(Decimal(value).adjusted()) + len(Decimal(value).as_tuple().digits) > _MAX_DIGITS:
                raise InvalidConstraintError(
                    f"{location.pointer}/{keyword}: a number of more than {_MAX_DIGITS} digits"
                )
            found[keyword] = Fraction(value)
        low_open = high_open = False
        if location.draft == Draft.DRAFT4:
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
            lambda: unite(_not_of("number"), Shapes(numbers=inside)),
            lambda: Shapes(numbers=tuple(numbers.outside(given))),
        )

    # --- strings ----------------------------------------------------------------------------------------------------

    def _count(self, location: Location, keyword: str, default: int | None = None) -> int | None:
        value = location.schema.get(keyword)
        if value is None:
            return default
        if not _is_number(value) or Fraction(value).denominator != 1 or value < 0:
            raise self._invalid(location, keyword, "a non-negative integer")
        return int(value)

    def _string_clause(self, keyword: str, given: StringSet) -> Clause:
        return Clause(
            keyword,
            lambda: unite(_not_of("string"), Shapes(strings=() if given.is_empty() else (given,))),
            lambda: Shapes(strings=tuple(strings.outside(given))),
        )

    def _lengths(self, location: Location) -> Clause:
        least = self._count(location, "minLength", 0) or 0
        keyword = "maxLength" if "maxLength" in location.schema else "minLength"
        return self._string_clause(keyword, StringSet(least, self._count(location, "maxLength")))

    def _pattern(self, location: Location) -> Clause:
        pattern = location.schema["pattern"]
        given = self._pattern_set(location, "pattern", pattern)
        if given is None:
            return Clause("pattern", lambda: EVERYTHING, lambda: EVERYTHING)
        return self._string_clause("pattern", given)

    def _pattern_set(self, location: Location, keyword: str, pattern: Json) -> StringSet | None:
        if not isinstance(pattern, str):
            raise self._invalid(location, keyword, "a string")
        try:
            return _found(pattern)
        except (ecma.UntranslatablePatternError, TooComplexError) as error:
            self.report(location.pointer, keyword, f"{pattern!r} cannot be translated: {error}")
            return None

    def _format(self, location: Location) -> Iterator[Clause]:
        name = location.schema["format"]
        if not isinstance(name, str):
            raise self._invalid(location, "format", "a string")
        given = format_set(name)
        if given is not None:
            clause = self._string_clause("format", given)
            yield Clause("format", clause.holds, None)
        elif name in UNENFORCEABLE and location.draft <= Draft.DRAFT7:
            yield self._unsupported(location, "format", f"{name!r}: {UNENFORCEABLE[name]}")

    # --- objects ----------------------------------------------------------------------------------------------------

    def _object(self, location: Location) -> Clause:
        schema = location.schema
        properties = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        required = schema.get("required", [])
        for keyword, value in (("properties", properties), ("patternProperties", patterns)):
            if not isinstance(value, dict):
                raise self._invalid(location, keyword, "an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise self._invalid(location, "required", "a list of names")
        least = self._count(location, "minProperties", 0) or 0
        most = self._count(location, "maxProperties")
        keyword = next(one for one in _OBJECT_KEYWORDS if one in schema)
        matched = [
            (names, pattern)
            for pattern in patterns
            if (names := self._pattern_set(location, "patternProperties", pattern)) is not None
        ]
        # Without a pattern that could not be read, nobody knows which members are additional.
        closed = "additionalProperties" in schema and len(matched) == len(patterns)
        restricted = "propertyNames" in schema and location.draft >= Draft.DRAFT6

        def value_of(keyword: str, *name: str, holds: bool = True) -> Demands:
            return self.demand(self._document.child(location, keyword, *name), holds)

        def holds() -> Shapes:
            additional = value_of("additionalProperties") if closed else ANY
            by_pattern = [(names, value_of("patternProperties", pattern)) for names, pattern in matched]
            classes: list[tuple[StringSet, Demands, bool]] = [(ALL_STRINGS, ANY, True)]
            for names, value in by_pattern:
                if value == ANY and additional == ANY:
                    continue
                split: list[tuple[StringSet, Demands, bool]] = []
                for inside, before, unmatched in classes:
                    split.append((strings.meet(inside, names), both(before, value), False))
                    split.extend((outside, before, unmatched) for outside in strings.subtract(inside, names))
                classes = [one for one in split if not one[0].is_empty()]
                if len(classes) > _MAX_NAME_CLASSES:
                    raise TooManyShapesError(f"more than {_MAX_NAME_CLASSES} classes of member names")
            values = {name: value_of("properties", name) for name in properties}
            for names, value in by_pattern:
                for name in properties:
                    if names.contains(name):
                        values[name] = both(values[name], value)
            others = [
                Members(names, both(value, additional) if unmatched else value)
                for names, value, unmatched in classes
                if not (unmatched and additional == NEVER) and value != NEVER
            ]
            shape = ObjectShape(tuple(values.items()), frozenset(required), tuple(others), (), least, most)
            if restricted:
                shape = self._restrict_names(shape, value_of("propertyNames"))
            return unite(_not_of("object"), Shapes(objects=tuple(settle_object(shape, ()))))

        def fails() -> Shapes:
            objects: list[ObjectShape] = []
            for name in required:
                objects.extend(_absent(name))
            for name in properties:
                value = value_of("properties", name, holds=False)
                if value != NEVER:
                    objects.append(ObjectShape(((name, value),), frozenset([name])))
            for names, pattern in matched:
                value = value_of("patternProperties", pattern, holds=False)
                if value != NEVER:
                    objects.extend(settle_object(ANY_OBJECT, (Members(names, value),)))
            if closed:
                value = value_of("additionalProperties", holds=False)
                rest = StringSet(without=frozenset(properties))
                for names, _ in matched:
                    for outside in strings.outside(names):
                        rest = strings.meet(rest, outside)
                if not rest.is_empty() and value != NEVER:
                    objects.extend(settle_object(ANY_OBJECT, (Members(rest, value),)))
            if least > 0:
                objects.extend(settle_object(ObjectShape(max_members=least - 1), ()))
            if most is not None:
                objects.extend(settle_object(ObjectShape(min_members=most + 1), ()))
            if restricted:
                for one in self.expand(value_of("propertyNames", holds=False)).strings:
                    objects.extend(settle_object(ANY_OBJECT, (Members(one, ANY),)))
            return Shapes(objects=tuple(objects))

        return Clause(keyword, holds, fails)

    def _restrict_names(self, shape: ObjectShape, allowed: Demands) -> ObjectShape:
        """The same objects, but for names that do not meet ``allowed``."""
        disjoint: list[StringSet] = []
        for one in self.expand(allowed).strings:
            pieces = [one]
            for earlier in disjoint:
                pieces = [rest for piece in pieces for rest in strings.subtract(piece, earlier)]
            disjoint.extend(pieces)
        named = {
            name: value if any(names.contains(name) for names in disjoint) else NEVER for name, value in shape.named
        }
        others: list[Members] = []
        for members in shape.others:
            for names in disjoint:
                joint = strings.meet(members.names, names)
                if joint.only is not None:
                    for name in sorted(joint.only):
                        named.setdefault(name, members.value)
                elif not joint.is_empty():
                    others.append(Members(joint, members.value))
        return ObjectShape(
            tuple(named.items()), shape.required, tuple(others), (), shape.min_members, shape.max_members
        )

    # --- arrays -----------------------------------------------------------------------------------------------------

    def _array(self, location: Location) -> Iterator[Clause]:
        schema = location.schema
        modern = location.draft >= Draft.DRAFT2020
        tuple_keyword = "prefixItems" if modern else "items"
        rest_keyword = "items" if modern else "additionalItems"
        length = 0
        if isinstance(schema.get(tuple_keyword), list):
            length = len(schema[tuple_keyword])
        elif not modern:
            # Without a list, "items" is for all of them and "additionalItems" means nothing.
            rest_keyword = "items"

        def first(holds: bool) -> list[Demands]:
            items = (self._document.child(location, tuple_keyword, index) for index in range(length))
            return [self.demand(item, holds) for item in items]

        def later(holds: bool) -> Demands:
            return self.demand(self._document.child(location, rest_keyword), holds)

        if length or rest_keyword in schema:

            def items_hold() -> Shapes:
                shape = ArrayShape(tuple(first(True)), later(True) if rest_keyword in schema else ANY)
                return unite(_not_of("array"), _arrays([shape]))

            def items_fail() -> Shapes:
                arrays = [
                    ArrayShape((*[ANY] * index, opposite), ANY, index + 1)
                    for index, opposite in enumerate(first(False))
                    if opposite != NEVER
                ]
                if rest_keyword in schema:
                    arrays.append(ArrayShape(contains=(Contains(later(False), 1, None, length),)))
                return _arrays(arrays)

            yield Clause(rest_keyword if rest_keyword in schema else tuple_keyword, items_hold, items_fail)
        least = self._count(location, "minItems", 0) or 0
        most = self._count(location, "maxItems")
        if least > 0 or most is not None:
            yield Clause(
                "maxItems" if most is not None else "minItems",
                lambda: unite(_not_of("array"), _arrays([ArrayShape(min_items=least, max_items=most)])),
                lambda: _arrays(
                    ([ArrayShape(max_items=least - 1)] if least else [])
                    + ([ArrayShape(min_items=most + 1)] if most is not None else [])
                ),
            )
        if schema.get("uniqueItems") is True:
            unique = ArrayShape(unique=frozenset([location.pointer]))
            yield Clause("uniqueItems", lambda: unite(_not_of("array"), _arrays([unique])), None)
        if "contains" in schema and location.draft >= Draft.DRAFT6:
            yield self._contains(location)

    def _contains(self, location: Location) -> Clause:
        counted = self._document.child(location, "contains")
        low, high = 1, None
        if location.draft >= Draft.DRAFT2019:
            low = self._count(location, "minContains", 1) or 0
            high = self._count(location, "maxContains")

        def holds() -> Shapes:
            value = self.demand(counted)
            return unite(_not_of("array"), _arrays([ArrayShape(contains=(Contains(value, low, high),))]))

        def fails() -> Shapes:
            arrays: list[ArrayShape] = []
            value = self.demand(counted)
            if low > 0:
                arrays.append(ArrayShape(contains=(Contains(value, 0, low - 1),)))
            if high is not None:
                arrays.append(ArrayShape(contains=(Contains(value, high + 1, None),)))
            return _arrays(arrays)

        return Clause("contains", holds, fails)

    # --- applicators ------------------------------------------------------------------------------------------------

    def _branches(self, location: Location, keyword: str) -> list[Location]:
        given = location.schema[keyword]
        if not isinstance(given, list) or not given:
            raise self._invalid(location, keyword, "a non-empty list of schemas")
        return [self._document.child(location, keyword, index) for index in range(len(given))]

    def _holds(self, location: Location) -> Shapes:
        return self.expand(self.demand(location))

    def _fails(self, location: Location) -> Shapes:
        return self.expand(self.demand(location, holds=False))

    def _applicators(self, location: Location) -> Iterator[Clause]:
        schema = location.schema
        if "allOf" in schema:
            for part in self._branches(location, "allOf"):
                yield Clause("allOf", functools.partial(self._holds, part), functools.partial(self._fails, part))
        if "anyOf" in schema:
            options = self._branches(location, "anyOf")
            yield Clause(
                "anyOf",
                lambda: unite(*(self._holds(option) for option in options)),
                lambda: self._all([self.demand(option, holds=False) for option in options]),
            )
        if "oneOf" in schema:
            yield self._one_of(location)
        if "not" in schema:
            negated = self._document.child(location, "not")
            yield Clause("not", lambda: self._fails(negated), lambda: self._holds(negated))
        if "if" in schema and location.draft >= Draft.DRAFT7 and ("then" in schema or "else" in schema):
            yield self._conditional(location)

    def _all(self, demands: Iterable[Demands]) -> Shapes:
        united = ANY
        for one in demands:
            united = both(united, one)
        return self.expand(united)

    def _one_of(self, location: Location) -> Clause:
        options = self._branches(location, "oneOf")

        def holds() -> Shapes:
            positive = [self.demand(option) for option in options]
            cases: list[Shapes] = []
            for index, option in enumerate(positive):
                demands = option
                for other, rival in enumerate(positive):
                    if other != index and not self._disjoint(option, rival):
                        demands = both(demands, self.demand(options[other], holds=False))
                cases.append(self.expand(demands))
            return unite(*cases)

        def fails() -> Shapes:
            none = self._all(self.demand(option, holds=False) for option in options)
            pairs = [
                self.expand(both(self.demand(one), self.demand(other)))
                for index, one in enumerate(options)
                for other in options[index + 1 :]
            ]
            return unite(none, *pairs)

        return Clause("oneOf", holds, fails)

    def _disjoint(self, one: Demands, other: Demands) -> bool:
        return self.is_empty(both(one, other))

    def _conditional(self, location: Location) -> Clause:
        condition = self._document.child(location, "if")

        def cases(branches_hold: bool) -> Shapes:
            parts: list[Shapes] = []
            for keyword, met in (("then", True), ("else", False)):
                demands = self.demand(condition, holds=met)
                if keyword in location.schema:
                    branch = self._document.child(location, keyword)
                    demands = both(demands, self.demand(branch, holds=branches_hold))
                elif not branches_hold:
                    continue
                parts.append(self.expand(demands))
            return unite(*parts)

        return Clause("if", lambda: cases(True), lambda: cases(False))

    def _dependencies(self, location: Location) -> Iterator[Clause]:
        schema = location.schema
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            if keyword not in schema:
                continue
            if keyword != "dependencies" and location.draft <= Draft.DRAFT7:
                continue
            given = schema[keyword]
            if not isinstance(given, dict):
                raise self._invalid(location, keyword, "an object")
            for name, needed in given.items():
                if isinstance(needed, list):
                    yield _dependency(keyword, name, [str(one) for one in needed])
                else:
                    yield self._dependent_schema(location, keyword, name)

    def _dependent_schema(self, location: Location, keyword: str, name: str) -> Clause:
        dependent = self._document.child(location, keyword, name)
        present = Shapes(objects=(ObjectShape(((name, ANY),), frozenset([name])),))
        absent = unite(_not_of("object"), Shapes(objects=tuple(_absent(name))))
        return Clause(
            keyword,
            lambda: unite(absent, intersect(present, self._holds(dependent))),
            lambda: intersect(present, self._fails(dependent)),
        )


def _dependency(keyword: str, name: str, needed: list[str]) -> Clause:
    absent = unite(_not_of("object"), Shapes(objects=tuple(_absent(name))))
    every = frozenset([name, *needed])
    present = Shapes(objects=(ObjectShape(tuple((one, ANY) for one in dict.fromkeys([name, *needed])), every),))

    def fails() -> Shapes:
        objects = [
            ObjectShape(((name, ANY), (one, NEVER)), frozenset([name])) for one in dict.fromkeys(needed) if one != name
        ]
        return Shapes(objects=tuple(objects))

    return Clause(keyword, lambda: unite(absent, present), fails)


def _absent(name: str) -> list[ObjectShape]:
    return [ObjectShape(((name, NEVER),))]


def _arrays(shapes: list[ArrayShape]) -> Shapes:
    return Shapes(arrays=tuple(settled for shape in shapes if (settled := settle_array(shape)) is not None))


def _not_of(kind: str) -> Shapes:
    """All values of other types."""
    return unite(*(shapes for name, shapes in _TYPES.items() if name != kind))


def _found(pattern: str) -> StringSet:
    """The strings in which a pattern is found."""
    return StringSet(patterns=frozenset([without_anchors(ecma.parse(pattern))]))


def _is_number(value: Json) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _point(value: int | Decimal) -> NumberSet:
    exact = Fraction(value)
    return NumberSet(low=exact, high=exact)


def _listed(values: frozenset[str]) -> tuple[StringSet, ...]:
    return (strings.one_of(values),) if values else ()


def _canonical(value: Json) -> str:
    """Equal for equal JSON values, and different for different ones."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_canonical(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_canonical(item) for item in value) + "]"
    return str(Fraction(value)) if _is_number(value) else json.dumps(value)
