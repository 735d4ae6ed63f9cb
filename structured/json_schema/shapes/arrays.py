"""``ArrayShape``: arrays by their items, length and counts, with intersection, canonical form and containment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from draftline.structured.json_schema.shapes.demands import ANY, NEVER, Demands, both
from draftline.structured.json_schema.shapes.limits import least


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
        repeating: pointers of the schemas that require unique items, and must not hold: two items are equal.
    """

    prefix: tuple[Demands, ...] = ()
    rest: Demands = ANY
    min_items: int = 0
    max_items: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: frozenset[str] = frozenset()
    repeating: frozenset[str] = frozenset()

    def item(self, index: int) -> Demands:
        """The demands on the item at an index."""
        return self.prefix[index] if index < len(self.prefix) else self.rest


ANY_ARRAY: Final = ArrayShape()


def meet_arrays(one: ArrayShape, other: ArrayShape) -> ArrayShape | None:
    """The intersection; None if it is empty."""
    length = max(len(one.prefix), len(other.prefix))
    return settle_array(
        ArrayShape(
            tuple(both(one.item(index), other.item(index)) for index in range(length)),
            both(one.rest, other.rest),
            max(one.min_items, other.min_items),
            least(one.max_items, other.max_items),
            tuple(dict.fromkeys(one.contains + other.contains)),
            one.unique | other.unique,
            one.repeating | other.repeating,
        )
    )


def settle_array(shape: ArrayShape) -> ArrayShape | None:
    """The same arrays in canonical form; None if there are none."""
    maximum = shape.max_items
    for index, value in enumerate(shape.prefix):
        if value == NEVER:
            maximum = least(maximum, index)
            break
    else:
        if shape.rest == NEVER:
            maximum = least(maximum, len(shape.prefix))
    prefix = shape.prefix if maximum is None else shape.prefix[:maximum]
    while prefix and prefix[-1] == shape.rest:
        prefix = prefix[:-1]
    minimum = max(shape.min_items, 2) if shape.repeating else shape.min_items
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
                maximum = least(maximum, one.start + one.high)
            continue
        contains.append(one)
    if (maximum is not None and minimum > maximum) or (shape.unique and shape.repeating):
        return None
    unique = shape.unique if maximum is None or maximum > 1 else frozenset[str]()
    rest = shape.rest if maximum is None or maximum > len(prefix) else NEVER
    return ArrayShape(prefix, rest, minimum, maximum, tuple(contains), unique, shape.repeating)


def array_within(one: ArrayShape, other: ArrayShape) -> bool:
    """Whether every array of ``one`` is obviously in ``other``: fewer demands are met by more values."""
    if not set(other.contains) <= set(one.contains) or not other.unique <= one.unique:
        return False
    if one.min_items < other.min_items or (other.repeating and not one.repeating):
        return False
    if other.max_items is not None and (one.max_items is None or one.max_items > other.max_items):
        return False
    length = max(len(one.prefix), len(other.prefix)) + 1
    return all(one.item(index) == NEVER or other.item(index) <= one.item(index) for index in range(length))
