"""The normalised form: a set of JSON values as a union of simple shapes, type by type.

The value of a member or an item is a set of `Demand`: schemas that must hold, and schemas that must not. Demands are
expanded to shapes lazily, so recursion costs nothing. The intersection of two values is the union of their demands.
Equal demands are one node of the language.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from draftline.structured.json_schema.document import Dialect, Location
from draftline.structured.json_schema.numbers import NumberSet
from draftline.structured.json_schema.numbers import meet as meet_numbers
from draftline.structured.json_schema.strings import ALL_STRINGS, StringSet
from draftline.structured.json_schema.strings import meet as meet_strings


class TooManyShapesError(ValueError):
    """An intersection or a union has more cases than the budget allows."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A schema that a value must match, or must not match if ``holds`` is False."""

    location: Location
    holds: bool = True

    @property
    def order(self) -> tuple[str, bool, tuple[tuple[str, str], ...]]:
        """The sort key of demands, where their order is visible."""
        return self.location.pointer, self.holds, self.location.scope


Demands = frozenset[Demand]
"""The demands on one value. All must be met; the empty set is met by any value."""

ANY: Final[Demands] = frozenset()
NEVER: Final[Demands] = frozenset([Demand(Location("false", False, "", Dialect.DRAFT2020))])


def both(one: Demands, other: Demands) -> Demands:
    """The demands that both sets make; NEVER if they contain it, or if a schema must hold and must not."""
    united = one | other
    if NEVER.issubset(united) or any(not demand.holds and Demand(demand.location) in united for demand in united):
        return NEVER
    return united


@dataclass(frozen=True, slots=True)
class Members:
    """The members whose name is in a set, and the demands on their values."""

    names: StringSet
    value: Demands


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """Objects.

    Attributes:
        named: properties by name, in the schema's order. A property whose value is NEVER must be absent.
        required: the names of required properties.
        others: all other members. The name sets are disjoint; a name in none of them is illegal.
        some: conditions, each met by at least one member whose name is *not* in ``named``.
        min_members: the minimum number of members.
        max_members: the maximum number of members, or None.
    """

    named: tuple[tuple[str, Demands], ...] = ()
    required: frozenset[str] = frozenset()
    others: tuple[Members, ...] = (Members(ALL_STRINGS, ANY),)
    some: tuple[Members, ...] = ()
    min_members: int = 0
    max_members: int | None = None

    def value_of(self, name: str) -> Demands:
        """The demands on a member of this name; NEVER if it must be absent."""
        for known, value in self.named:
            if known == name:
                return value
        for members in self.others:
            if members.names.contains(name):
                return members.value
        return NEVER


@dataclass(frozen=True, slots=True)
class Contains:
    """At least ``low`` and at most ``high`` items from index ``start`` on meet ``value``."""

    value: Demands
    low: int
    high: int | None
    start: int = 0


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """Arrays.

    Attributes:
        prefix: the demands on each of the first items.
        rest: the demands on all later items.
        min_items: the minimum length.
        max_items: the maximum length, or None.
        contains: counts of items that meet demands.
        unique: pointers of the schemas that require unique items.
    """

    prefix: tuple[Demands, ...] = ()
    rest: Demands = ANY
    min_items: int = 0
    max_items: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: frozenset[str] = frozenset()

    def item(self, index: int) -> Demands:
        """The demands on the item at an index."""
        return self.prefix[index] if index < len(self.prefix) else self.rest


ANY_OBJECT: Final = ObjectShape()
ANY_ARRAY: Final = ArrayShape()
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


NOTHING: Final = Shapes()
EVERYTHING: Final = Shapes(True, frozenset([False, True]), (ANY_NUMBER,), (ALL_STRINGS,), (ANY_ARRAY,), (ANY_OBJECT,))

MAX_SHAPES: Final = 2_048
"""The most cases of one type while schemas are intersected. Most of them are impossible, or contained in others."""

MAX_CASES: Final = 256
"""The most cases of one type in a language: a parser follows all of them side by side."""

_Shape = TypeVar("_Shape")


def unite(*sets: Shapes) -> Shapes:
    """The union of sets."""
    return Shapes(
        any(one.null for one in sets),
        frozenset(value for one in sets for value in one.booleans),
        _merge_numbers(shape for one in sets for shape in one.numbers),
        _merge_strings(shape for one in sets for shape in one.strings),
        _absorb((shape for one in sets for shape in one.arrays), ANY_ARRAY),
        _absorb((shape for one in sets for shape in one.objects), ANY_OBJECT),
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


def meet_arrays(one: ArrayShape, other: ArrayShape) -> ArrayShape | None:
    """The intersection; None if it is empty."""
    length = max(len(one.prefix), len(other.prefix))
    bounds = [bound for bound in (one.max_items, other.max_items) if bound is not None]
    return settle_array(
        ArrayShape(
            tuple(both(one.item(index), other.item(index)) for index in range(length)),
            both(one.rest, other.rest),
            max(one.min_items, other.min_items),
            min(bounds) if bounds else None,
            tuple(dict.fromkeys(one.contains + other.contains)),
            one.unique | other.unique,
        )
    )


def settle_array(shape: ArrayShape) -> ArrayShape | None:
    """The same arrays in canonical form; None if there are none."""
    maximum = shape.max_items
    for index, value in enumerate(shape.prefix):
        if value == NEVER:
            maximum = index if maximum is None else min(maximum, index)
            break
    else:
        if shape.rest == NEVER:
            maximum = len(shape.prefix) if maximum is None else min(maximum, len(shape.prefix))
    prefix = shape.prefix if maximum is None else shape.prefix[:maximum]
    while prefix and prefix[-1] == shape.rest:
        prefix = prefix[:-1]
    minimum = shape.min_items
    contains: list[Contains] = []
    for one in shape.contains:
        if one.high is not None and one.high < one.low:
            return None
        if one.value == NEVER or (one.high is None and one.low == 0):
            if one.low > 0:
                return None
            continue
        minimum = max(minimum, one.start + one.low) if one.low else minimum
        if one.value == ANY:
            if one.high is not None:
                maximum = one.start + one.high if maximum is None else min(maximum, one.start + one.high)
            continue
        contains.append(one)
    if maximum is not None and minimum > maximum:
        return None
    unique = shape.unique if maximum is None or maximum > 1 else frozenset[str]()
    rest = shape.rest if maximum is None or maximum > len(prefix) else NEVER
    return ArrayShape(prefix, rest, minimum, maximum, tuple(contains), unique)


def meet_objects(one: ObjectShape, other: ObjectShape) -> Iterator[ObjectShape]:
    """The intersection."""
    names = dict.fromkeys([name for name, _ in one.named] + [name for name, _ in other.named])
    named = {name: both(one.value_of(name), other.value_of(name)) for name in names}
    others: list[Members] = []
    for mine in one.others:
        for yours in other.others:
            value = both(mine.value, yours.value)
            joint = meet_strings(mine.names, yours.names)
            if value == NEVER or joint.is_empty():
                continue
            if joint.only is not None:
                for name in sorted(joint.only):
                    named.setdefault(name, value)
            else:
                others.append(Members(joint, value))
    if len(others) > MAX_SHAPES:
        raise TooManyShapesError(f"more than {MAX_SHAPES} classes of member names")
    bounds = [bound for bound in (one.max_members, other.max_members) if bound is not None]
    joined = ObjectShape(
        tuple(named.items()),
        one.required | other.required,
        tuple(others),
        (),
        max(one.min_members, other.min_members),
        min(bounds) if bounds else None,
    )
    # A name that only one of the two shapes names is an unnamed member of the other.
    yield from settle_object(joined, one.some + other.some)


def settle_object(shape: ObjectShape, some: tuple[Members, ...]) -> Iterator[ObjectShape]:
    """The objects of ``shape``, which has no ``some`` yet, with a member, named or not, for each condition in ``some``."""
    named = dict(shape.named)
    for name in sorted(shape.required):
        if name not in named:
            named[name] = shape.value_of(name)
    if any(named[name] == NEVER for name in shape.required):
        return
    minimum = max(shape.min_members, len(shape.required))
    possible = None if shape.others else sum(value != NEVER for value in named.values())
    maximum = shape.max_members
    if possible is not None and maximum is not None and maximum >= possible:
        maximum = None
    if (maximum is not None and minimum > maximum) or (possible is not None and minimum > possible):
        return
    required = shape.required
    if possible is not None and minimum == possible:
        required = frozenset(name for name, value in named.items() if value != NEVER)
    if minimum <= len(required):
        minimum = 0
    if maximum == len(required):
        named = {name: value if name in required else NEVER for name, value in named.items()}
        shape, maximum = replace(shape, others=()), None
    cases = [replace(shape, named=tuple(named.items()), required=required, min_members=minimum, max_members=maximum)]
    for wanted in some:
        cases = [case for before in cases for case in _with_some(before, wanted)]
        if len(cases) > MAX_SHAPES:
            raise TooManyShapesError(f"more than {MAX_SHAPES} cases")
    yield from cases


def _with_some(shape: ObjectShape, wanted: Members) -> Iterator[ObjectShape]:
    inside = [name for name, value in shape.named if value != NEVER and wanted.names.contains(name)]
    if wanted.value == ANY and any(name in shape.required for name in inside):
        yield shape
        return
    for name in inside:
        value = both(dict(shape.named)[name], wanted.value)
        if value != NEVER:
            named = tuple((known, value if known == name else old) for known, old in shape.named)
            yield replace(shape, named=named, required=shape.required | {name})
    for index, condition in enumerate(shape.some):
        # The member that meets one condition may meet another too.
        meeting = Members(meet_strings(condition.names, wanted.names), both(condition.value, wanted.value))
        if meeting == condition:
            yield shape
            return
        if meeting.value != NEVER and not meeting.names.is_empty():
            yield replace(shape, some=(*shape.some[:index], meeting, *shape.some[index + 1 :]))
    for members in shape.others:
        joint = meet_strings(members.names, wanted.names)
        value = both(members.value, wanted.value)
        if value != NEVER and not joint.is_empty():
            taken = [name for name, _ in shape.named]
            free = meet_strings(joint, StringSet(without=frozenset(taken)))
            if not free.is_empty():
                yield replace(shape, some=(*shape.some, Members(free, value)))


def widest(shapes: Iterable[_Shape], within: Callable[[_Shape, _Shape], bool]) -> tuple[_Shape, ...]:
    """The same values, without shapes that are obviously contained in another."""
    kept: list[_Shape] = []
    for shape in dict.fromkeys(shapes):
        if not any(within(shape, other) for other in kept):
            kept = [other for other in kept if not within(other, shape)]
            kept.append(shape)
    return tuple(kept)


def array_within(one: ArrayShape, other: ArrayShape) -> bool:
    """Whether every array of ``one`` is obviously in ``other``: fewer demands are met by more values."""
    if not set(other.contains) <= set(one.contains) or not other.unique <= one.unique:
        return False
    if one.min_items < other.min_items:
        return False
    if other.max_items is not None and (one.max_items is None or one.max_items > other.max_items):
        return False
    length = max(len(one.prefix), len(other.prefix)) + 1
    return all(one.item(index) == NEVER or other.item(index) <= one.item(index) for index in range(length))


def object_within(one: ObjectShape, other: ObjectShape) -> bool:
    """Whether every object of ``one`` is obviously in ``other``."""
    if other.some or not other.required <= one.required or one.others != other.others:
        return False
    if other.min_members > max(one.min_members, len(one.required)):
        return False
    if other.max_members is not None and (one.max_members is None or one.max_members > other.max_members):
        return False
    mine, theirs = dict(one.named), dict(other.named)
    return all(
        (value := one.value_of(name) if name not in mine else mine[name]) == NEVER
        or (theirs[name] if name in theirs else other.value_of(name)) <= value
        for name in mine.keys() | theirs.keys()
    )
