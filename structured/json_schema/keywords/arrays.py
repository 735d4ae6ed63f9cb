"""Keywords about the items of an array."""

from __future__ import annotations

from collections.abc import Iterator

from draftline.structured.json_schema.document import Dialect, Location
from draftline.structured.json_schema.keywords.clause import (
    Clause,
    Expander,
    arrays_of,
    max_count,
    min_count,
    not_of,
)
from draftline.structured.json_schema.shapes.arrays import ArrayShape, Contains
from draftline.structured.json_schema.shapes.demands import ANY, NEVER, Demands
from draftline.structured.json_schema.shapes.union import Shapes, unite


def array_clauses(expander: Expander, location: Location) -> Iterator[Clause]:
    """The clauses of the keywords about arrays."""
    schema = location.schema
    modern = location.dialect >= Dialect.DRAFT2020
    tuple_keyword = "prefixItems" if modern else "items"
    rest_keyword = "items" if modern else "additionalItems"
    length = 0
    if isinstance(schema.get(tuple_keyword), list):
        length = len(schema[tuple_keyword])
    elif not modern:
        # If "items" is not a list, it applies to all items, and "additionalItems" is ignored.
        rest_keyword = "items"

    def first(holds: bool) -> list[Demands]:
        items = (expander.document.child(location, tuple_keyword, index) for index in range(length))
        return [expander.demand(item, holds) for item in items]

    def later(holds: bool) -> Demands:
        return expander.demand(expander.document.child(location, rest_keyword), holds)

    if length or rest_keyword in schema:

        def items_hold() -> Shapes:
            shape = ArrayShape(tuple(first(True)), later(True) if rest_keyword in schema else ANY)
            return unite(not_of("array"), arrays_of([shape]))

        def items_fail() -> Shapes:
            arrays = [
                ArrayShape((*[ANY] * index, opposite), ANY, index + 1)
                for index, opposite in enumerate(first(False))
                if opposite != NEVER
            ]
            if rest_keyword in schema:
                arrays.append(ArrayShape(contains=(Contains(later(False), 1, None, length),)))
            return arrays_of(arrays)

        yield Clause(rest_keyword if rest_keyword in schema else tuple_keyword, items_hold, items_fail)
    minimum = min_count(location, "minItems")
    maximum = max_count(location, "maxItems")
    if minimum > 0 or maximum is not None:
        yield Clause(
            "maxItems" if maximum is not None else "minItems",
            lambda: unite(not_of("array"), arrays_of([ArrayShape(min_items=minimum, max_items=maximum)])),
            lambda: arrays_of(
                ([ArrayShape(max_items=minimum - 1)] if minimum else [])
                + ([ArrayShape(min_items=maximum + 1)] if maximum is not None else [])
            ),
        )
    if schema.get("uniqueItems") is True:
        here = frozenset([location.pointer])
        yield Clause(
            "uniqueItems",
            lambda: unite(not_of("array"), arrays_of([ArrayShape(unique=here)])),
            lambda: arrays_of([ArrayShape(repeating=here)]),
        )
    if "contains" in schema and location.dialect >= Dialect.DRAFT6:
        yield _contains(expander, location)


def _contains(expander: Expander, location: Location) -> Clause:
    counted = expander.document.child(location, "contains")
    low, high = 1, None
    if location.dialect >= Dialect.DRAFT2019:
        low = min_count(location, "minContains", 1)
        high = max_count(location, "maxContains")

    def holds() -> Shapes:
        value = expander.demand(counted)
        return unite(not_of("array"), arrays_of([ArrayShape(contains=(Contains(value, low, high),))]))

    def fails() -> Shapes:
        arrays: list[ArrayShape] = []
        value = expander.demand(counted)
        if low > 0:
            arrays.append(ArrayShape(contains=(Contains(value, 0, low - 1),)))
        if high is not None:
            arrays.append(ArrayShape(contains=(Contains(value, high + 1, None),)))
        return arrays_of(arrays)

    return Clause("contains", holds, fails)
