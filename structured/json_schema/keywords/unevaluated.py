"""unevaluatedProperties and unevaluatedItems: the members and items that no other applicable schema has evaluated.

Every combination of subschemas that can hold together is a case, with its evaluated members and items. Within one case
the keyword is as simple as additionalProperties or items.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from draftline.structured.json_schema.document import Dialect, Location, UnresolvedReferenceError
from draftline.structured.json_schema.keywords.clause import (
    Clause,
    Expander,
    arrays_of,
    name_set,
    not_of,
    unsupported,
)
from draftline.structured.json_schema.keywords.objects import members_by_name, other_names
from draftline.structured.json_schema.parsing import Json
from draftline.structured.json_schema.shapes.arrays import ArrayShape, Contains
from draftline.structured.json_schema.shapes.demands import ANY, NEVER, Demands, both
from draftline.structured.json_schema.shapes.objects import ANY_OBJECT, Members, ObjectShape, settle_object
from draftline.structured.json_schema.shapes.strings import StringSet
from draftline.structured.json_schema.shapes.union import Shapes, intersect, unite

_MAX_CASES: Final = 64


class _TooManyCasesError(ValueError):
    """More combinations of schemas than the budget allows."""


@dataclass(frozen=True, slots=True)
class Case:
    """The members and items that are evaluated when certain schemas hold.

    Attributes:
        holds: the demands on a value in this case.
        names: the names of evaluated properties.
        patterns: patterns of the names of evaluated properties.
        every_name: whether all properties are evaluated.
        first_items: the number of leading items that are evaluated.
        every_item: whether all items are evaluated.
        counted: schemas; items that match one of them are evaluated too.
    """

    holds: Demands = ANY
    names: frozenset[str] = frozenset()
    patterns: frozenset[StringSet] = frozenset()
    every_name: bool = False
    first_items: int = 0
    every_item: bool = False
    counted: tuple[Location, ...] = ()

    def silent(self) -> bool:
        """Whether nothing is evaluated."""
        return replace(self, holds=ANY) == Case()

    def beyond(self, known: Case) -> Case:
        """The same case without what ``known`` evaluates."""
        return Case(
            self.holds,
            frozenset() if known.every_name else self.names - known.names,
            frozenset() if known.every_name else self.patterns - known.patterns,
            self.every_name and not known.every_name,
            0 if known.every_item or self.first_items <= known.first_items else self.first_items,
            self.every_item and not known.every_item,
            () if known.every_item else tuple(one for one in self.counted if one not in known.counted),
        )


def _joined(one: Case, other: Case) -> Case:
    return Case(
        both(one.holds, other.holds),
        one.names | other.names,
        one.patterns | other.patterns,
        one.every_name or other.every_name,
        max(one.first_items, other.first_items),
        one.every_item or other.every_item,
        tuple(dict.fromkeys(one.counted + other.counted)),
    )


def unevaluated_clauses(expander: Expander, location: Location) -> Iterator[Clause]:
    """The clauses of unevaluatedProperties and unevaluatedItems."""
    schema = location.schema
    if location.dialect < Dialect.DRAFT2019:
        return
    for keyword, read in (("unevaluatedProperties", _properties), ("unevaluatedItems", _items)):
        if keyword in schema and schema[keyword] is not True:
            try:
                yield read(expander, location, _cases(expander, location, keyword, Case(), ()))
            except _TooManyCasesError as error:
                yield unsupported(expander, location, keyword, str(error))


def _cases(expander: Expander, location: Location, but: str, known: Case, path: tuple[Location, ...]) -> list[Case]:
    """All cases in which a schema holds, without the evaluations of its keyword ``but`` and those that are ``known``.

    Harmless overlaps remain.
    """
    schema = location.schema
    if not isinstance(schema, dict):
        return [Case()]
    always = _always(expander, location, but, path)
    path = (*path, location)
    cases = [always.beyond(known)]
    known = _joined(known, always)

    def product(alternatives: list[Case]) -> None:
        if all(case.silent() for case in alternatives):
            return  # whichever of them it is
        cases[:] = [_joined(one, other) for one in cases for other in alternatives]
        if len(cases) > _MAX_CASES:
            raise _TooManyCasesError(f"more than {_MAX_CASES} combinations of schemas can hold together")

    def below(*step: str | int) -> tuple[Location, list[Case]]:
        inner = expander.document.child(location, *step)
        return inner, _cases(expander, inner, "", known, path)

    for part in _parts(expander, location):
        product(_cases(expander, part, "", known, path))
    if "anyOf" in schema:
        product(_any_of(expander, [below("anyOf", index) for index in range(_length(schema["anyOf"]))]))
    if "oneOf" in schema:
        options = [below("oneOf", index) for index in range(_length(schema["oneOf"]))]
        product(_noted(options, expander))
    if "if" in schema:
        condition, met = below("if")
        then = below("then")[1] if "then" in schema else [Case()]
        otherwise = below("else")[1] if "else" in schema else [Case()]
        holds, fails = Case(expander.demand(condition)), Case(expander.demand(condition, holds=False))
        product(
            [_joined(holds, _joined(one, other)) for one in met for other in then]
            + [_joined(fails, other) for other in otherwise]
        )
    for name in _names(schema.get("dependentSchemas")):
        inner = below("dependentSchemas", name)[1]
        present = location.made(f"/dependentSchemas\0{name}", {"type": "object", "required": [name]})
        there, absent = Case(expander.demand(present)), Case(expander.demand(present, holds=False))
        product([_joined(there, case) for case in inner] + [absent])
    return list(dict.fromkeys(cases))


def _always(expander: Expander, location: Location, but: str, path: tuple[Location, ...]) -> Case:
    """What is evaluated whenever a schema holds, without the evaluations of its keyword ``but``."""
    if not isinstance(location.schema, dict):
        return Case()
    if location in path:
        raise _TooManyCasesError("it refers to itself in the same place")
    path = (*path, location)
    case = _own(expander, location, but)
    for part in _parts(expander, location):
        case = _joined(case, _always(expander, part, "", path))
    return case


def _parts(expander: Expander, location: Location) -> Iterator[Location]:
    """The schemas that hold whenever a schema holds."""
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if isinstance(location.schema.get(keyword), str):
            try:
                yield expander.document.target(location, keyword)
            except UnresolvedReferenceError:
                raise _TooManyCasesError("a reference is not in this document") from None
    for index in range(_length(location.schema.get("allOf"))):
        yield expander.document.child(location, "allOf", index)


def _length(given: Json) -> int:
    """The number of schemas in a keyword's list; 0 for other values, which another clause rejects."""
    return len(given) if isinstance(given, list) else 0


def _names(given: Json) -> list[str]:
    """The names in a keyword's object; none for other values, which another clause rejects."""
    return list(given) if isinstance(given, dict) else []


def _own(expander: Expander, location: Location, but: str) -> Case:
    """The evaluations of a schema's own keywords."""
    schema = location.schema
    names = frozenset(_names(schema.get("properties")))
    patterns: set[StringSet] = set()
    for pattern in _names(schema.get("patternProperties")):
        found = name_set(expander, location, pattern)
        if found is not None:
            patterns.add(found)
    every_name = "additionalProperties" in schema or (
        "unevaluatedProperties" in schema and but != "unevaluatedProperties"
    )
    modern = location.dialect >= Dialect.DRAFT2020
    tuple_items = schema.get("prefixItems" if modern else "items")
    first_items = len(tuple_items) if isinstance(tuple_items, list) else 0
    all_items = ("items" in schema and not (first_items and not modern)) or (
        not modern and first_items > 0 and "additionalItems" in schema
    )
    every_item = all_items or ("unevaluatedItems" in schema and but != "unevaluatedItems")
    counted = (expander.document.child(location, "contains"),) if modern and "contains" in schema else ()
    return Case(ANY, names, frozenset(patterns), every_name, first_items, every_item, counted)


def _noted(options: list[tuple[Location, list[Case]]], expander: Expander) -> list[Case]:
    """The cases in which one of the options holds."""
    return [_joined(Case(expander.demand(option)), case) for option, inner in options for case in inner]


def _any_of(expander: Expander, options: list[tuple[Location, list[Case]]]) -> list[Case]:
    """The cases of anyOf: each option that evaluates something holds or fails. Another clause demands that one holds."""
    telling = [(option, inner) for option, inner in options if not all(case.silent() for case in inner)]
    cases: list[Case] = []
    for combination in itertools.product((True, False), repeat=len(telling)):
        known = [Case()]
        for (option, inner), holds in zip(telling, combination, strict=True):
            met = Case(expander.demand(option, holds))
            known = [_joined(one, _joined(met, case)) for one in known for case in (inner if holds else [Case()])]
        cases.extend(known)
        if len(cases) > _MAX_CASES:
            raise _TooManyCasesError(f"more than {_MAX_CASES} combinations of schemas can hold together")
    return cases


def _properties(expander: Expander, location: Location, cases: list[Case]) -> Clause:
    inner = expander.document.child(location, "unevaluatedProperties")

    def holds() -> Shapes:
        value = expander.demand(inner)
        parts: list[Shapes] = []
        for case in cases:
            given = expander.expand(case.holds)
            if not case.every_name:
                named, others = members_by_name(
                    {name: ANY for name in sorted(case.names)}, [(names, ANY) for names in case.patterns], value
                )
                objects = tuple(settle_object(ObjectShape(named, frozenset(), others), ()))
                given = intersect(given, unite(not_of("object"), Shapes(objects=objects)))
            parts.append(given)
        return unite(*parts)

    def fails() -> Shapes:
        value = expander.demand(inner, holds=False)
        parts: list[Shapes] = []
        for case in cases:
            if value != NEVER and not case.every_name:
                for rest in other_names(case.names, case.patterns):
                    wrong = tuple(settle_object(ANY_OBJECT, (Members(rest, value),)))
                    parts.append(intersect(expander.expand(case.holds), Shapes(objects=wrong)))
        return unite(*parts)

    return Clause("unevaluatedProperties", holds, fails)


def _items(expander: Expander, location: Location, cases: list[Case]) -> Clause:
    inner = expander.document.child(location, "unevaluatedItems")

    def later(case: Case, number: int) -> Location:
        """The schema of items behind the evaluated ones: counted, or as the keyword demands."""
        if not case.counted:
            return inner
        options = [counted.schema for counted in case.counted]
        return location.made(f"/unevaluatedItems\0{number}", {"anyOf": [*options, inner.schema]})

    rests = [later(case, number) for number, case in enumerate(cases)]

    def holds() -> Shapes:
        parts: list[Shapes] = []
        for case, rest in zip(cases, rests, strict=True):
            given = expander.expand(case.holds)
            if not case.every_item:
                shape = ArrayShape((ANY,) * case.first_items, expander.demand(rest))
                given = intersect(given, unite(not_of("array"), arrays_of([shape])))
            parts.append(given)
        return unite(*parts)

    def fails() -> Shapes:
        parts: list[Shapes] = []
        for case, rest in zip(cases, rests, strict=True):
            if not case.every_item:
                wrong = Contains(expander.demand(rest, holds=False), 1, None, case.first_items)
                arrays = arrays_of([ArrayShape(contains=(wrong,))])
                parts.append(intersect(expander.expand(case.holds), arrays))
        return unite(*parts)

    return Clause("unevaluatedItems", holds, fails)
