"""From schemas to shapes: the values that satisfy each keyword, and the values that do not.

Every keyword is a *clause* with these two readings. A schema is the intersection of its clauses, its negation the union
of their negations. So `not`, `oneOf`, `if` and dependencies need no special cases. A clause without an exact reading is
reported and left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from draftline.structured.errors import InvalidConstraintError, Violation
from draftline.structured.json_schema.document import Dialect, Document, Location, UnresolvedReferenceError
from draftline.structured.json_schema.keywords.applicators import applicator_clauses, narrowed, reference_clauses
from draftline.structured.json_schema.keywords.arrays import array_clauses
from draftline.structured.json_schema.keywords.clause import Clause, is_number
from draftline.structured.json_schema.keywords.kinds import check_values, ignored_keywords
from draftline.structured.json_schema.keywords.objects import object_clauses
from draftline.structured.json_schema.keywords.scalars import scalar_clauses
from draftline.structured.json_schema.keywords.unevaluated import unevaluated_clauses
from draftline.structured.json_schema.keywords.values import value_clauses
from draftline.structured.json_schema.limits import SchemaLimits
from draftline.structured.json_schema.parsing import Json
from draftline.structured.json_schema.readings import Reading
from draftline.structured.json_schema.shapes.arrays import ArrayShape, Contains, array_within, settle_array
from draftline.structured.json_schema.shapes.demands import ANY, NEVER, Demand, Demands, both
from draftline.structured.json_schema.shapes.limits import TooManyShapesError
from draftline.structured.json_schema.shapes.numbers import read_number
from draftline.structured.json_schema.shapes.objects import ObjectShape, object_within, settle_object
from draftline.structured.json_schema.shapes.union import EVERYTHING, NOTHING, Shapes, intersect, unite, widest
from draftline.structured.json_schema.spelling import IntegerSpelling
from draftline.structured.regular.dfa import TooComplexError

_DEPTH: Final = 6
"""The nesting depth to which emptiness is examined, where the answer only saves work."""


_FEW_CASES: Final = 8
"""So many cases of one type are not worth a search for those that are empty or contained in another."""


class _InProgressError(Exception):
    """The contents of a value are being expanded."""


class Normaliser:
    """Expands demands on values to shapes, with memoization.

    Args:
        document: the schema document.
        limits: bounds on the expansion.
        reading: how formats and patterns are read.
        integers: the texts of integers.
        closes_objects: whether objects that say nothing of other members will be closed.
        wider: a normaliser that proves emptiness in place of this one, or None. Its sets include all values that any
            validator accepts.

    Attributes:
        violations: the parts that cannot be enforced, by pointer and keyword.
        annotations: the annotations that say more than is enforced. The standard asks no validator to check them.
    """

    def __init__(
        self,
        document: Document,
        limits: SchemaLimits,
        reading: Reading,
        integers: IntegerSpelling,
        wider: Normaliser | None = None,
        closes_objects: bool = False,
    ) -> None:
        self.document = document
        self.reading = reading
        self.integers: IntegerSpelling = integers
        self.closes_objects = closes_objects
        self._limits = limits
        self._wider = wider
        self._expanded: dict[Demand, Shapes] = {}
        self._joined: dict[Demands, Shapes] = {}
        self._expanding: list[Demand] = []
        self._guard = 0
        self._clauses: dict[Location, list[Clause]] = {}
        self._constants: dict[str, Location] = {}
        self._empty: dict[Demands, bool] = {}
        self._listed: dict[Demands, frozenset[str] | None] = {}
        self._enum_values = 0
        self._work = 0
        self.violations: dict[tuple[str, str], Violation] = {}
        self.annotations: dict[tuple[str, str], Violation] = {}

    def report(self, pointer: str, keyword: str, reason: str) -> None:
        """Report something that is not enforced, in or within the schema at ``pointer``."""
        self._add(self.violations, pointer, keyword, reason)

    def annotate(self, pointer: str, keyword: str, reason: str) -> None:
        """Report an annotation of the schema at ``pointer`` that says more than is enforced."""
        self._add(self.annotations, pointer, keyword, reason)

    def place(self, pointer: str, keyword: str) -> str:
        """The JSON pointer of a keyword of the schema at ``pointer``, or of the schema if it does not have the keyword."""
        pointer = pointer.partition("\0")[0]  # a suffix tells synthetic schemas apart
        return f"{pointer}/{keyword}" if self.document.says(pointer, keyword) else pointer

    def _add(self, found: dict[tuple[str, str], Violation], pointer: str, keyword: str, reason: str) -> None:
        where = self.place(pointer, keyword)
        found.setdefault((where, keyword), Violation(where, keyword, reason))

    # --- demands ----------------------------------------------------------------------------------------------------

    def demand(self, location: Location, holds: bool = True) -> Demands:
        """The demands on a value for a schema to hold, or not to hold."""
        schema = location.schema
        for _ in range(100):
            if isinstance(schema, bool):
                return ANY if schema == holds else NEVER
            reference = schema.get("$ref")
            alone = location.dialect <= Dialect.DRAFT7 or not any(self._clauses_of(location)[1:])
            if not isinstance(reference, str) or not alone:
                break
            try:
                location = self.document.resolve(location, reference)
            except UnresolvedReferenceError:
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
            # Positive demands first: most cases of a negation contradict them.
            for demand in sorted(narrowed(self, demands), key=lambda one: (not one.holds, one.order)):
                known = self._meet(known, self._expand_one(demand), demand)
            self._joined[demands] = known
        return known

    def _meet(self, one: Shapes, other: Shapes, demand: Demand, keyword: str = "allOf") -> Shapes:
        self._work += 1 + (0 if EVERYTHING in (one, other) else _pairs(one, other))
        if self._work > self._limits.intersections:
            raise InvalidConstraintError(
                f"the schema takes more than {self._limits.intersections} intersections of shapes to normalise,"
                f" the last of them at #{self.place(demand.location.pointer, keyword)}"
            )
        try:
            joint = intersect(one, other)
            many = max(len(joint.objects), len(joint.arrays)) > _FEW_CASES
            return self._simplified(joint) if many or not demand.holds else joint
        except (TooManyShapesError, TooComplexError) as error:
            self.report(
                demand.location.pointer, keyword, f"its intersection with the other schemas that apply here has {error}"
            )
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
            self.report(location.pointer, "$ref", "it refers to itself without a value in between")
            return EVERYTHING
        self._expanding.append(demand)
        try:
            shapes = EVERYTHING if demand.holds else NOTHING
            for clause in self._clauses_of(location):
                if demand.holds:
                    shapes = self._meet(shapes, self._read(location, clause, clause.holds), demand, clause.keyword)
                elif clause.fails is None:
                    reason = "its negation has no exact form, and not, oneOf or if needs one"
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
        """Whether it is proven that no value meets the demands. False may mean that no proof was found."""
        if demands == NEVER:
            return True
        if self._wider is not None:
            return self._wider.is_empty(demands, depth)
        if not demands or depth == 0:
            return False
        known = self._empty.get(demands)
        if known is None:
            # Demands that are being expanded further out are unknown yet. They are no endless loop: a value lies in between.
            outer, self._guard = self._guard, len(self._expanding) if depth < _DEPTH else self._guard
            self._empty[demands] = False
            try:
                known = self._differ_in_tags(demands) or self._none(self.expand(demands), depth)
                self._empty[demands] = known
            except _InProgressError:
                del self._empty[demands]
                if depth == _DEPTH:
                    raise
                return False
            finally:
                self._guard = outer
        return known

    def _differ_in_tags(self, demands: Demands) -> bool:
        """Whether demands are on objects that require one member with different texts, as those of tagged unions are.

        It takes no intersection, of which a union of n schemas would have n².
        """
        shapes = [self._expand_one(demand) for demand in demands if demand.holds] if len(demands) > 1 else []
        if all(one != Shapes(objects=one.objects) for one in shapes):
            return False
        # One demand may require the member, and others say which texts it has.
        objects = [one.objects[0] for one in shapes if len(one.objects) == 1]
        required = frozenset[str]().union(*(one.required for one in objects))
        texts: dict[str, frozenset[str]] = {}
        for name, value in (member for one in objects for member in one.named if member[0] in required):
            these = self._texts(value)
            if these is not None:
                texts[name] = these & texts.get(name, these)
                if not texts[name]:
                    return True
        return False

    def _texts(self, value: Demands) -> frozenset[str] | None:
        """The texts that meet demands, if no other value does and they are listed."""
        if value in self._listed:
            return self._listed[value]
        if not all(demand.holds for demand in value):
            return None  # a negation may have no exact form
        outer, self._guard = self._guard, len(self._expanding)
        try:
            shapes = self.expand(value)
        except _InProgressError:
            return None
        finally:
            self._guard = outer
        listed = len(shapes.strings) == 1 and shapes == Shapes(strings=shapes.strings)
        self._listed[value] = shapes.strings[0].only if listed else None
        return self._listed[value]

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
        """The same values, without cases that are empty or contained in another: negations produce many of these."""
        objects: list[ObjectShape] = []
        for shape in shapes.objects:
            named = tuple((name, self._without_idle(value)) for name, value in shape.named)
            objects.extend(settle_object(replace(shape, named=named, some=()), shape.some))
        arrays = [settled for shape in shapes.arrays if (settled := self._without_idle_counts(shape)) is not None]
        return replace(shapes, arrays=widest(arrays, array_within), objects=widest(objects, object_within))

    def _without_idle_counts(self, shape: ArrayShape) -> ArrayShape | None:
        """The same arrays. Counts that every item meets become lengths; impossible items become NEVER."""
        shape = replace(
            shape,
            prefix=tuple(self._without_idle(value) for value in shape.prefix),
            rest=self._without_idle(shape.rest),
        )
        minimum = shape.min_items
        counts: list[Contains] = []
        for one in shape.contains:
            items = {shape.item(index) for index in range(one.start, len(shape.prefix))} | {shape.rest}
            possible = [item for item in items if self._without_idle(both(item, one.value)) != NEVER]
            if not possible:
                if one.low > 0:
                    return None
            elif one.high is None and all(self._without_idle(both(item, one.value)) == item for item in items):
                minimum = max(minimum, one.start + one.low)
            else:
                counts.append(one)
        return settle_array(replace(shape, min_items=minimum, contains=tuple(counts)))

    def _without_idle(self, value: Demands) -> Demands:
        """The demands without redundant negations; NEVER if they contradict one another."""
        if len(value) < 2:
            return value
        negated = [demand for demand in value if not demand.holds]
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
        yield from reference_clauses(self, location)
        if "$ref" in schema and location.dialect <= Dialect.DRAFT7:
            return  # siblings of $ref are ignored in these drafts
        check_values(self.document, location)
        for keyword, reason in ignored_keywords(location):
            self.annotate(location.pointer, keyword, reason)
        for reader in _READERS:
            yield from reader(self, location)

    # --- for keywords -----------------------------------------------------------------------------------------------

    def keywords(self, location: Location) -> list[str]:
        """The keywords of a schema that have clauses, once for each clause."""
        return [clause.keyword for clause in self._clauses_of(location)]

    def constant(self, location: Location, value: Json) -> Demands:
        """The demands on a value to equal ``value``, which is in the schema at ``location``."""
        written = _canonical(value)
        known = self._constants.get(written)
        if known is None:
            pointer = f"{location.pointer}/const\0{len(self._constants)}"
            known = self._constants[written] = Location(pointer, {"const": value}, "", Dialect.DRAFT2020)
        return frozenset([Demand(known)])

    def count_values(self, location: Location, keyword: str, number: int) -> None:
        """Count enum values against the limit."""
        self._enum_values += number
        if self._enum_values > self._limits.enum_values:
            raise InvalidConstraintError(
                f"{location.pointer}/{keyword}: the schema has more than {self._limits.enum_values} enum values"
            )


_READERS: Final = (
    scalar_clauses,
    value_clauses,
    object_clauses,
    array_clauses,
    applicator_clauses,
    unevaluated_clauses,
)


def _pairs(one: Shapes, other: Shapes) -> int:
    """The number of pairs of shapes in an intersection."""
    scalars = len(one.strings) * len(other.strings) + len(one.numbers) * len(other.numbers)
    return scalars + len(one.objects) * len(other.objects) + len(one.arrays) * len(other.arrays)


def _canonical(value: Json) -> str:
    """A text that is the same for equal JSON values only."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_canonical(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_canonical(item) for item in value) + "]"
    return str(read_number(value)) if is_number(value) else json.dumps(value)
