"""``Shapes``: a set of JSON values of all types, with unions and intersections.

Cases that are obviously empty are left out. Others may be empty too: demands on their members decide that later (`graph`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from draftline.structured.json_schema.shapes.arrays import ANY_ARRAY, ArrayShape, meet_arrays
from draftline.structured.json_schema.shapes.limits import MAX_SHAPES, TooManyShapesError
from draftline.structured.json_schema.shapes.numbers import NumberSet
from draftline.structured.json_schema.shapes.numbers import meet as meet_numbers
from draftline.structured.json_schema.shapes.objects import ANY_OBJECT, ObjectShape, join_optional, meet_objects
from draftline.structured.json_schema.shapes.strings import ALL_STRINGS, StringSet
from draftline.structured.json_schema.shapes.strings import meet as meet_strings

ANY_NUMBER: Final = NumberSet()


@dataclass(frozen=True, slots=True)
class Shapes:
    """A set of JSON values: the union of the shapes of all types."""

    null: bool = False
    booleans: frozenset[bool] = frozenset()
    numbers: tuple[NumberSet, ...] = ()
    strings: tuple[StringSet, ...] = ()
    arrays: tuple[ArrayShape, ...] = ()
    objects: tuple[ObjectShape, ...] = ()

    @property
    def types(self) -> frozenset[str]:
        """The types of the values, by their names in JSON Schema."""
        return frozenset(
            name
            for name, some in (
                ("null", self.null),
                ("boolean", self.booleans),
                ("number", self.numbers),
                ("string", self.strings),
                ("array", self.arrays),
                ("object", self.objects),
            )
            if some
        )


NOTHING: Final = Shapes()
EVERYTHING: Final = Shapes(True, frozenset([False, True]), (ANY_NUMBER,), (ALL_STRINGS,), (ANY_ARRAY,), (ANY_OBJECT,))

_Shape = TypeVar("_Shape")


def unite(*sets: Shapes) -> Shapes:
    """The union of sets."""
    return Shapes(
        any(one.null for one in sets),
        frozenset(value for one in sets for value in one.booleans),
        _merge_numbers(shape for one in sets for shape in one.numbers),
        _merge_strings(shape for one in sets for shape in one.strings),
        _absorb((shape for one in sets for shape in one.arrays), ANY_ARRAY),
        _absorb(join_optional(shape for one in sets for shape in one.objects), ANY_OBJECT),
    )


def intersect(one: Shapes, other: Shapes) -> Shapes:
    """The intersection of two sets, without cases that are obviously empty.

    Raises:
        TooManyShapesError, TooComplexError: over a budget.
    """
    if one == EVERYTHING or other == NOTHING:
        return other
    if other == EVERYTHING or one == NOTHING:
        return one
    return Shapes(
        one.null and other.null,
        one.booleans & other.booleans,
        _merge_numbers(_meetings(one.numbers, other.numbers, _some_numbers)),
        _merge_strings(_meetings(one.strings, other.strings, _some_strings)),
        _absorb(_meetings(one.arrays, other.arrays, meet_arrays), ANY_ARRAY),
        _absorb((joint for a in one.objects for b in other.objects for joint in meet_objects(a, b)), ANY_OBJECT),
    )


def _meetings(
    ours: Iterable[_Shape], theirs: Sequence[_Shape], meet: Callable[[_Shape, _Shape], _Shape | None]
) -> Iterator[_Shape]:
    for one in ours:
        for other in theirs:
            joint = meet(one, other)
            if joint is not None:
                yield joint


def _some_numbers(one: NumberSet, other: NumberSet) -> NumberSet | None:
    joint = meet_numbers(one, other)
    return None if joint.is_empty() else joint


def _some_strings(one: StringSet, other: StringSet) -> StringSet | None:
    joint = meet_strings(one, other)
    return None if joint.is_empty() else joint


def _absorb(shapes: Iterable[_Shape], everything: _Shape) -> tuple[_Shape, ...]:
    distinct: dict[_Shape, None] = {}
    for shape in shapes:
        if shape == everything:
            return (everything,)
        distinct[shape] = None
        if len(distinct) > MAX_SHAPES:
            raise TooManyShapesError(f"more than {MAX_SHAPES} cases")
    return tuple(distinct)


def _merge_numbers(sets: Iterable[NumberSet]) -> tuple[NumberSet, ...]:
    """Single numbers, as enums list them, are no cases: there may be as many as the limit on enum values allows."""
    points: dict[NumberSet, None] = {}

    def others() -> Iterator[NumberSet]:
        for one in sets:
            if one.is_point():
                points[one] = None
            else:
                yield one

    kept = _absorb(others(), ANY_NUMBER)
    return kept if kept == (ANY_NUMBER,) else (*kept, *points)


def _merge_strings(sets: Iterable[StringSet]) -> tuple[StringSet, ...]:
    listed: set[str] = set()
    others: dict[StringSet, None] = {}
    for one in sets:
        if one.only is not None:
            listed |= one.only
        else:
            others[one] = None
    if ALL_STRINGS in others:
        return (ALL_STRINGS,)
    if len(others) > MAX_SHAPES:
        raise TooManyShapesError(f"more than {MAX_SHAPES} cases")
    return (*others, *((StringSet(only=frozenset(listed)),) if listed else ()))


def widest(shapes: Iterable[_Shape], within: Callable[[_Shape, _Shape], bool]) -> tuple[_Shape, ...]:
    """The same values, without shapes that are obviously contained in another."""
    kept: list[_Shape] = []
    for shape in dict.fromkeys(shapes):
        if not any(within(shape, other) for other in kept):
            kept = [other for other in kept if not within(other, shape)]
            kept.append(shape)
    return tuple(kept)
