"""``ObjectShape``: objects by their members, with intersection, canonical form and containment.

An intersection may have several cases: a member that a condition asks for can be any of the properties.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from draftline.structured.json_schema.shapes.demands import ANY, NEVER, Demands, both
from draftline.structured.json_schema.shapes.limits import MAX_SHAPES, TooManyShapesError, least
from draftline.structured.json_schema.shapes.strings import ALL_STRINGS, StringSet
from draftline.structured.json_schema.shapes.strings import meet as meet_strings


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

    def unnamed(self, name: str) -> Demands:
        """The demands on a member that is not in ``named``; NEVER if it must be absent."""
        for members in self.others:
            if members.names.contains(name):
                return members.value
        return NEVER

    @property
    def possible(self) -> list[tuple[str, Demands]]:
        """The properties that may be there."""
        return [(name, value) for name, value in self.named if value != NEVER]

    def unnamed_members(self) -> Iterator[Members]:
        """The members of ``others``, with names that no property has."""
        taken = StringSet(without=frozenset(name for name, _ in self.named))
        for members in self.others:
            names = meet_strings(members.names, taken) if taken.without else members.names
            if not names.is_empty():
                yield Members(names, members.value)


ANY_OBJECT: Final = ObjectShape()


def _value(named: Mapping[str, Demands], shape: ObjectShape, name: str) -> Demands:
    """The demands of a shape on a member, with its ``named`` as a dict: shapes may have hundreds."""
    return named[name] if name in named else shape.unnamed(name)


def meet_objects(one: ObjectShape, other: ObjectShape) -> Iterator[ObjectShape]:
    """The intersection."""
    mine, theirs = dict(one.named), dict(other.named)
    named = {name: both(_value(mine, one, name), _value(theirs, other, name)) for name in mine | theirs}
    others: list[Members] = []
    for ours in one.others:
        for yours in other.others:
            value = both(ours.value, yours.value)
            if value != NEVER:
                add_members(named, others, meet_strings(ours.names, yours.names), value)
    if len(others) > MAX_SHAPES:
        raise TooManyShapesError(f"more than {MAX_SHAPES} classes of member names")
    joined = ObjectShape(
        tuple(named.items()),
        one.required | other.required,
        tuple(others),
        (),
        max(one.min_members, other.min_members),
        least(one.max_members, other.max_members),
    )
    # A name that only one of the two shapes names is an unnamed member of the other.
    yield from settle_object(joined, one.some + other.some)


def add_members(named: dict[str, Demands], others: list[Members], names: StringSet, value: Demands) -> None:
    """Add members to ``others``, or those whose names are listed to ``named``, unless they are there."""
    if names.only is not None:
        for name in sorted(names.only):
            named.setdefault(name, value)
    elif not names.is_empty():
        others.append(Members(names, value))


def settle_object(shape: ObjectShape, some: tuple[Members, ...]) -> Iterator[ObjectShape]:
    """The objects of ``shape``, which has no ``some`` yet, with a member, named or not, for each condition in ``some``."""
    named = dict(shape.named)
    for name in sorted(shape.required):
        if name not in named:
            named[name] = shape.unnamed(name)
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


def join_optional(shapes: Iterable[ObjectShape]) -> list[ObjectShape]:
    """The same objects. Two shapes that differ in one member, absent in one and required in the other, become one.

    So the objects that do not match ``{"required": ["a"], "properties": {"a": …}}`` are one case and not two, and those
    that match none of n such schemas are one and not 2ⁿ.
    """
    joined = list(dict.fromkeys(shapes))
    for name in dict.fromkeys(name for shape in joined for name, value in shape.named if value == NEVER):
        absent = {_without(shape, name): shape for shape in joined if (name, NEVER) in shape.named}
        optional: dict[ObjectShape, ObjectShape] = {}
        for shape in joined:
            if name in shape.required and (other := absent.pop(_without(shape, name), None)) is not None:
                optional[other] = replace(shape, required=shape.required - {name})
                optional[shape] = optional[other]
        joined = list(dict.fromkeys(optional.get(shape, shape) for shape in joined))
    return joined


def _without(shape: ObjectShape, name: str) -> ObjectShape:
    """The shape without its conditions on one member."""
    named = tuple((known, value) for known, value in shape.named if known != name)
    return replace(shape, named=named, required=shape.required - {name})


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
        (value := _value(mine, one, name)) == NEVER or _value(theirs, other, name) <= value
        for name in mine.keys() | theirs.keys()
    )
