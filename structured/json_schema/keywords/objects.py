"""Keywords about the members of an object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from draftline.structured.json_schema.closing import OPEN
from draftline.structured.json_schema.document import Dialect, Location
from draftline.structured.json_schema.keywords.clause import (
    Clause,
    Expander,
    absent,
    max_count,
    min_count,
    name_set,
    not_of,
)
from draftline.structured.json_schema.shapes import strings
from draftline.structured.json_schema.shapes.demands import ANY, NEVER, Demands, both
from draftline.structured.json_schema.shapes.limits import TooManyShapesError
from draftline.structured.json_schema.shapes.objects import ANY_OBJECT, Members, ObjectShape, add_members, settle_object
from draftline.structured.json_schema.shapes.strings import ALL_STRINGS, StringSet
from draftline.structured.json_schema.shapes.union import EVERYTHING, Shapes, intersect, unite

_OBJECT_KEYWORDS: Final = (
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
    "propertyNames",
)
_MAX_NAME_CLASSES: Final = 64


def object_clauses(expander: Expander, location: Location) -> Iterator[Clause]:
    """The clauses of the keywords about objects."""
    if any(keyword in location.schema for keyword in _OBJECT_KEYWORDS):
        yield _object(expander, location)
    yield from _dependencies(expander, location)


def _object(expander: Expander, location: Location) -> Clause:
    schema = location.schema
    properties = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    required = schema.get("required", [])
    minimum = min_count(location, "minProperties")
    maximum = max_count(location, "maxProperties")
    keyword = next(one for one in _OBJECT_KEYWORDS if one in schema)
    matched = [(names, pattern) for pattern in patterns if (names := name_set(expander, location, pattern)) is not None]
    # If a pattern cannot be translated, it is unknown which members are additional, and which objects fail.
    known = len(matched) == len(patterns)
    closed = "additionalProperties" in schema and known
    restricted = "propertyNames" in schema and location.dialect >= Dialect.DRAFT6

    def value_of(keyword: str, *name: str, holds: bool = True) -> Demands:
        return expander.demand(expander.document.child(location, keyword, *name), holds)

    # Where objects are closed, others may be there only if the schema says so.
    says_open = closed or schema.get("unevaluatedProperties") is True
    silent = OPEN if expander.closes_objects and says_open else ANY

    mentioned = dict.fromkeys(properties if expander.closes_objects else (), ANY)

    def with_member(name: str, value: Demands) -> ObjectShape:
        """The objects that have the member, or do not have it if ``value`` is NEVER."""
        needed = frozenset[str]() if value == NEVER else frozenset([name])
        return ObjectShape(tuple({**mentioned, name: value}.items()), needed)

    def holds() -> Shapes:
        additional = both(value_of("additionalProperties"), silent) if closed else silent
        by_pattern = [(names, value_of("patternProperties", pattern)) for names, pattern in matched]
        values, others = members_by_name(
            {name: value_of("properties", name) for name in properties}, by_pattern, additional
        )
        shape = ObjectShape(values, frozenset(required), others, (), minimum, maximum)
        if restricted:
            shape = _restrict_names(expander, shape, value_of("propertyNames"))
        return unite(not_of("object"), Shapes(objects=tuple(settle_object(shape, ()))))

    def fails() -> Shapes:
        objects = [with_member(name, NEVER) for name in required]
        for name in properties:
            value = value_of("properties", name, holds=False)
            if value != NEVER:
                objects.append(with_member(name, value))
        for names, pattern in matched:
            value = value_of("patternProperties", pattern, holds=False)
            if value != NEVER:
                objects.extend(settle_object(ANY_OBJECT, (Members(names, value),)))
        if closed:
            value = value_of("additionalProperties", holds=False)
            if value != NEVER:
                for rest in other_names(properties, [names for names, _ in matched]):
                    objects.extend(settle_object(ANY_OBJECT, (Members(rest, value),)))
        if minimum > 0:
            objects.extend(settle_object(ObjectShape(max_members=minimum - 1), ()))
        if maximum is not None:
            objects.extend(settle_object(ObjectShape(min_members=maximum + 1), ()))
        if restricted:
            for one in expander.expand(value_of("propertyNames", holds=False)).strings:
                objects.extend(settle_object(ANY_OBJECT, (Members(one, ANY),)))
        return Shapes(objects=tuple(objects))

    return Clause(keyword, holds, fails if known else lambda: EVERYTHING)


def members_by_name(
    properties: dict[str, Demands], patterns: list[tuple[StringSet, Demands]], additional: Demands
) -> tuple[tuple[tuple[str, Demands], ...], tuple[Members, ...]]:
    """The demands on named members, and on all others: every pattern that matches the name, or else ``additional``.

    Raises:
        TooManyShapesError, TooComplexError: they exceed a budget.
    """
    classes: list[tuple[StringSet, Demands, bool]] = [(ALL_STRINGS, ANY, True)]
    for names, value in patterns:
        if value == ANY and additional == ANY:
            continue
        split: list[tuple[StringSet, Demands, bool]] = []
        for inside, before, unmatched in classes:
            split.append((strings.meet(inside, names), both(before, value), False))
            split.extend((outside, before, unmatched) for outside in strings.subtract(inside, names))
        classes = [one for one in split if not one[0].is_empty()]
        if len(classes) > _MAX_NAME_CLASSES:
            raise TooManyShapesError(
                f"more than {_MAX_NAME_CLASSES} kinds of names: each pattern that overlaps with the others doubles them"
            )
    named = dict(properties)
    for names, value in patterns:
        for name in properties:
            if names.contains(name):
                named[name] = both(named[name], value)
    others: list[Members] = []
    for names, value, unmatched in classes:
        final = both(value, additional) if unmatched else value
        if final != NEVER:
            add_members(named, others, names, final)
    return tuple(named.items()), tuple(others)


def other_names(names: Iterable[str], patterns: Iterable[StringSet]) -> list[StringSet]:
    """The names that are not in ``names`` and match no pattern: disjoint sets, none of them empty.

    Raises:
        TooComplexError: a set exceeds the budget of automata.
    """
    rest = [StringSet(without=frozenset(names))]
    for pattern in patterns:
        rest = [piece for one in rest for piece in strings.subtract(one, pattern)]
    return rest


def _restrict_names(expander: Expander, shape: ObjectShape, allowed: Demands) -> ObjectShape:
    """The same objects, restricted to names that meet ``allowed``."""
    disjoint: list[StringSet] = []
    for one in expander.expand(allowed).strings:
        pieces = [one]
        for earlier in disjoint:
            pieces = [rest for piece in pieces for rest in strings.subtract(piece, earlier)]
        disjoint.extend(pieces)
    named = {name: value if any(names.contains(name) for names in disjoint) else NEVER for name, value in shape.named}
    others: list[Members] = []
    for members in shape.others:
        for names in disjoint:
            add_members(named, others, strings.meet(members.names, names), members.value)
    return ObjectShape(tuple(named.items()), shape.required, tuple(others), (), shape.min_members, shape.max_members)


def _dependencies(expander: Expander, location: Location) -> Iterator[Clause]:
    schema = location.schema
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        if keyword not in schema:
            continue
        if keyword != "dependencies" and location.dialect <= Dialect.DRAFT7:
            continue
        for name, needed in schema[keyword].items():
            if isinstance(needed, list):
                yield _dependency(keyword, name, needed)
            else:
                yield _dependent_schema(expander, location, keyword, name)


def _dependent_schema(expander: Expander, location: Location, keyword: str, name: str) -> Clause:
    dependent = expander.document.child(location, keyword, name)
    present = Shapes(objects=(ObjectShape(((name, ANY),), frozenset([name])),))
    without = unite(not_of("object"), Shapes(objects=(absent(name),)))
    return Clause(
        keyword,
        lambda: unite(without, intersect(present, expander.expand(expander.demand(dependent)))),
        lambda: intersect(present, expander.expand(expander.demand(dependent, holds=False))),
    )


def _dependency(keyword: str, name: str, needed: list[str]) -> Clause:
    without = unite(not_of("object"), Shapes(objects=(absent(name),)))
    # With or without the name: of many names that need the same others, few cases are left.
    present = Shapes(objects=(ObjectShape(tuple((one, ANY) for one in dict.fromkeys(needed)), frozenset(needed)),))

    def fails() -> Shapes:
        objects = [
            ObjectShape(((name, ANY), (one, NEVER)), frozenset([name])) for one in dict.fromkeys(needed) if one != name
        ]
        return Shapes(objects=tuple(objects))

    return Clause(keyword, lambda: unite(without, present), fails)
