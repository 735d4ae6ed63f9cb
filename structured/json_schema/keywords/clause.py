"""``Clause``: the two readings of a keyword, as sets of values; and helpers that keywords share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Protocol

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema.document import Document, Location
from draftline.structured.json_schema.parsing import Json
from draftline.structured.json_schema.readings import Reading
from draftline.structured.json_schema.shapes.arrays import ANY_ARRAY, ArrayShape, settle_array
from draftline.structured.json_schema.shapes.demands import NEVER, Demands
from draftline.structured.json_schema.shapes.objects import ANY_OBJECT, ObjectShape
from draftline.structured.json_schema.shapes.strings import ALL_STRINGS, StringSet
from draftline.structured.json_schema.shapes.union import ANY_NUMBER, EVERYTHING, Shapes, unite
from draftline.structured.json_schema.spelling import IntegerSpelling
from draftline.structured.regular import ecma
from draftline.structured.regular.dfa import TooComplexError
from draftline.structured.regular.expression import conjuncts, without_anchors
from draftline.structured.regular.syntax import Node

TYPES: Final = {
    "null": Shapes(null=True),
    "boolean": Shapes(booleans=frozenset([False, True])),
    "number": Shapes(numbers=(ANY_NUMBER,)),
    "string": Shapes(strings=(ALL_STRINGS,)),
    "array": Shapes(arrays=(ANY_ARRAY,)),
    "object": Shapes(objects=(ANY_OBJECT,)),
}

MAX_COUNT: Final = 1_000_000
"""Counts of characters, items or members: a larger maximum is no bound, a larger minimum is rejected."""

_SHOWN = 60
"""Characters of a malformed value that an error shows."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A keyword (or a group of keywords) and its two readings.

    Attributes:
        keyword: its name in reports.
        holds: the values that satisfy it.
        fails: the values that do not; None if that set has no exact form.
    """

    keyword: str
    holds: Callable[[], Shapes]
    fails: Callable[[], Shapes] | None


class Expander(Protocol):
    """The view that keywords have of the normaliser."""

    @property
    def document(self) -> Document:
        """The schema document."""

    @property
    def integers(self) -> IntegerSpelling:
        """The texts of integers."""

    @property
    def reading(self) -> Reading:
        """How formats and patterns are read."""

    @property
    def closes_objects(self) -> bool:
        """Whether objects that say nothing of other members will be closed."""

    def report(self, pointer: str, keyword: str, reason: str) -> None:
        """Report something that is not enforced, in or within the schema at ``pointer``."""

    def annotate(self, pointer: str, keyword: str, reason: str) -> None:
        """Report an annotation of the schema at ``pointer`` that says more than is enforced."""

    def keywords(self, location: Location) -> list[str]:
        """The keywords of a schema that have clauses, once for each clause."""

    def demand(self, location: Location, holds: bool = True) -> Demands:
        """The demands on a value for a schema to hold, or not to hold."""

    def constant(self, location: Location, value: Json) -> Demands:
        """The demands on a value to equal ``value``, which is in the schema at ``location``."""

    def count_values(self, location: Location, keyword: str, number: int) -> None:
        """Count enum values against the limit."""

    def expand(self, demands: Demands) -> Shapes:
        """The values that meet all demands."""

    def is_empty(self, demands: Demands) -> bool:
        """Whether it is proven that no value meets the demands."""


def invalid(location: Location, keyword: str, expected: str, hint: str = "") -> InvalidConstraintError:
    """The error of a keyword with a malformed value, with a hint at its end."""
    shown = json.dumps(location.schema[keyword], ensure_ascii=False, default=str)
    if len(shown) > _SHOWN:
        shown = shown[: _SHOWN - 1] + "…"
    return InvalidConstraintError(f"{location.pointer}/{keyword}: expected {expected}, not {shown}{hint}")


def unsupported(expander: Expander, location: Location, keyword: str, reason: str) -> Clause:
    """A clause that is reported and left out."""

    def drop() -> Shapes:
        expander.report(location.pointer, keyword, reason)
        return EVERYTHING

    return Clause(keyword, drop, drop)


def min_count(location: Location, keyword: str, default: int = 0) -> int:
    """The value of a keyword that is a minimum count."""
    value = _count(location, keyword)
    if value is not None and value > MAX_COUNT:
        raise InvalidConstraintError(f"{location.pointer}/{keyword}: more than {MAX_COUNT:,}")
    return default if value is None else value


def max_count(location: Location, keyword: str) -> int | None:
    """The value of a keyword that is a maximum count; None if it is absent or above ``MAX_COUNT``."""
    value = _count(location, keyword)
    return None if value is None or value > MAX_COUNT else value


def _count(location: Location, keyword: str) -> int | None:
    value = location.schema.get(keyword)
    return None if value is None else int(value)


def pattern_sets(
    expander: Expander, location: Location, keyword: str, pattern: str
) -> tuple[StringSet, StringSet] | None:
    """The strings that match a pattern, and those of which the others do not; None, with a report, if it cannot be translated."""
    try:
        tree, other = expander.reading.pattern_holds(pattern), expander.reading.pattern_fails(pattern)
        found = _searched(tree)
        return found, found if other == tree else _searched(other)
    except (ecma.UntranslatablePatternError, TooComplexError) as error:
        expander.report(location.pointer, keyword, f"{pattern!r} cannot be translated: {error}")
        return None


def name_set(expander: Expander, location: Location, pattern: str) -> StringSet | None:
    """The members of a name in ``patternProperties``; None, with a report, if the pattern cannot be translated."""
    keyword = "patternProperties"
    sets = pattern_sets(expander, location, keyword, pattern)
    if sets is not None and sets[0] != sets[1]:
        # A name that may match is neither of the pattern's members nor of the others.
        reason = f"{pattern!r} cannot be translated: the word boundary \\b in names"
        expander.report(location.pointer, keyword, reason)
        return None
    return None if sets is None else sets[0]


def _searched(tree: Node) -> StringSet:
    trees = [(without_anchors(one), holds) for one, holds in conjuncts(tree)]
    return StringSet(
        patterns=frozenset(one for one, holds in trees if holds),
        not_patterns=frozenset(one for one, holds in trees if not holds),
    )


def absent(name: str) -> ObjectShape:
    """The objects without a property."""
    return ObjectShape(((name, NEVER),))


def arrays_of(shapes: list[ArrayShape]) -> Shapes:
    """The arrays of any of these shapes."""
    return Shapes(arrays=tuple(settled for shape in shapes if (settled := settle_array(shape)) is not None))


def not_of(kind: str) -> Shapes:
    """All values of other types."""
    return unite(*(shapes for name, shapes in TYPES.items() if name != kind))


def is_number(value: Json) -> bool:
    """Whether a value is a JSON number."""
    return isinstance(value, int | Decimal) and not isinstance(value, bool)
