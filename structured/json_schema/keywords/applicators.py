"""Keywords that refer to other schemas, or combine them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from draftline.structured.json_schema.document import Dialect, Location, UnresolvedReferenceError
from draftline.structured.json_schema.keywords.clause import (
    Clause,
    Expander,
    invalid,
    unsupported,
)
from draftline.structured.json_schema.keywords.tagged import tag_of, tagged
from draftline.structured.json_schema.shapes.demands import ANY, Demand, Demands, both
from draftline.structured.json_schema.shapes.union import Shapes, unite


def reference_clauses(expander: Expander, location: Location) -> Iterator[Clause]:
    """The clauses of the keywords that refer to other schemas."""
    schema = location.schema
    if "$ref" in schema:
        yield _reference(expander, location, "$ref")
    if "$dynamicRef" in schema and location.dialect >= Dialect.DRAFT2020:
        yield _reference(expander, location, "$dynamicRef")
    if "$recursiveRef" in schema and location.dialect == Dialect.DRAFT2019:
        yield _reference(expander, location, "$recursiveRef")


def _reference(expander: Expander, location: Location, keyword: str) -> Clause:
    reference = location.schema[keyword]
    if not isinstance(reference, str):
        raise invalid(location, keyword, "a string")
    try:
        target = expander.document.target(location, keyword)
    except UnresolvedReferenceError as error:
        return unsupported(expander, location, keyword, str(error))
    return Clause(
        keyword,
        lambda: expander.expand(expander.demand(target)),
        lambda: expander.expand(expander.demand(target, holds=False)),
    )


def _branches(expander: Expander, location: Location, keyword: str) -> list[Location]:
    return [expander.document.child(location, keyword, index) for index in range(len(location.schema[keyword]))]


def applicator_clauses(expander: Expander, location: Location) -> Iterator[Clause]:
    """The clauses of the keywords that combine schemas."""
    schema = location.schema
    if "allOf" in schema:
        for part in _branches(expander, location, "allOf"):
            yield Clause("allOf", functools.partial(_holds, expander, part), functools.partial(_fails, expander, part))
    if "anyOf" in schema:
        options = _branches(expander, location, "anyOf")
        tag = tag_of(expander, location, "anyOf", options)
        yield Clause(
            "anyOf",
            lambda: unite(*map(expander.expand, tagged(expander, location, tag, list(map(expander.demand, options))))),
            lambda: _all(expander, [expander.demand(option, holds=False) for option in options]),
        )
    if "oneOf" in schema:
        yield _one_of(expander, location)
    if "not" in schema:
        negated = expander.document.child(location, "not")
        yield Clause("not", lambda: _fails(expander, negated), lambda: _holds(expander, negated))
    if "if" in schema and location.dialect >= Dialect.DRAFT7 and ("then" in schema or "else" in schema):
        yield _conditional(expander, location)


def narrowed(expander: Expander, demands: Demands) -> Demands:
    """The same demands with less to negate: no schema, and no option of a choice, that the positive demands exclude.

    A negation alone may have very many cases: nine tagged objects, each with a few members, can fail in thousands of ways.
    """
    context = frozenset(demand for demand in demands if demand.holds)
    negated = demands - context
    if not context or not negated:
        return demands
    return context.union(*(_failing(expander, demand.location, context) for demand in negated))


def _failing(expander: Expander, location: Location, context: Demands) -> Demands:
    """The demands for a schema not to hold, of values that meet ``context``."""
    if expander.is_empty(both(context, frozenset([Demand(location)]))):
        return ANY
    keywords = expander.keywords(location)
    if keywords not in (["anyOf"], ["oneOf"]):
        return frozenset([Demand(location, holds=False)])
    options = _branches(expander, location, keywords[0])
    possible = [one for one in options if not expander.is_empty(both(context, expander.demand(one)))]
    for index, one in enumerate(possible if keywords == ["oneOf"] else ()):
        for other in possible[index + 1 :]:
            if not expander.is_empty(both(context, both(expander.demand(one), expander.demand(other)))):
                return frozenset([Demand(location, holds=False)])  # it fails where both hold, too
    return ANY.union(*(expander.demand(one, holds=False) for one in possible))


def _all(expander: Expander, demands: Iterable[Demands]) -> Shapes:
    united = ANY
    for one in demands:
        united = both(united, one)
    return expander.expand(united)


def _one_of(expander: Expander, location: Location) -> Clause:
    options = _branches(expander, location, "oneOf")
    # Which options exclude one another depends on the values that the schema allows.
    beside = {keyword: location.schema[keyword] for keyword in ("type", "required") if keyword in location.schema}
    allowed = location.made("\0oneOf", beside or True)
    tag = tag_of(expander, location, "oneOf", options)

    def holds() -> Shapes:
        positive = [both(expander.demand(option), expander.demand(allowed)) for option in options]
        if tag is not None and not expander.reading.discriminates:
            return unite(*map(expander.expand, positive))  # some readers look at the option of the tag alone
        cases: list[Shapes] = []
        for index, option in enumerate(tagged(expander, location, tag, positive)):
            demands = option
            for other, rival in enumerate(positive):
                if other != index and not expander.is_empty(both(option, rival)):
                    demands = both(demands, expander.demand(options[other], holds=False))
            cases.append(expander.expand(demands))
        return unite(*cases)

    def fails() -> Shapes:
        none = _all(expander, [expander.demand(option, holds=False) for option in options])
        pairs = [
            expander.expand(both(expander.demand(one), expander.demand(other)))
            for index, one in enumerate(options)
            for other in options[index + 1 :]
        ]
        return unite(none, *pairs)

    return Clause("oneOf", holds, fails)


def _conditional(expander: Expander, location: Location) -> Clause:
    condition = expander.document.child(location, "if")

    def cases(branches_hold: bool) -> Shapes:
        parts: list[Shapes] = []
        for keyword, met in (("then", True), ("else", False)):
            demands = expander.demand(condition, holds=met)
            if keyword in location.schema:
                branch = expander.document.child(location, keyword)
                demands = both(demands, expander.demand(branch, holds=branches_hold))
            elif not branches_hold:
                continue
            parts.append(expander.expand(demands))
        return unite(*parts)

    return Clause("if", lambda: cases(True), lambda: cases(False))


def _holds(expander: Expander, location: Location) -> Shapes:
    return expander.expand(expander.demand(location))


def _fails(expander: Expander, location: Location) -> Shapes:
    return expander.expand(expander.demand(location, holds=False))
