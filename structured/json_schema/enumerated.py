"""Arrays with unique items from a short list of scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from draftline.structured.json_schema.shapes.arrays import ArrayShape
from draftline.structured.json_schema.shapes.demands import ANY, Demands
from draftline.structured.json_schema.shapes.numbers import NumberSet
from draftline.structured.json_schema.shapes.strings import StringSet
from draftline.structured.json_schema.shapes.union import Shapes

MAX_VALUES: Final = 60


def unique_values(shape: ArrayShape, expand: Callable[[Demands], Shapes]) -> list[Shapes] | None:
    """The possible values of items of ``shape``, one `Shapes` each; None unless they are a short list of scalars."""
    if shape.prefix or shape.contains or shape.rest == ANY:
        return None
    items = expand(shape.rest)
    if items.arrays or items.objects:
        return None
    values = [Shapes(null=True)] if items.null else []
    values.extend(Shapes(booleans=frozenset([value])) for value in sorted(items.booleans))
    points: dict[object, Shapes] = {}
    for numbers in items.numbers:
        listed = numbers.values(MAX_VALUES)
        if listed is None:
            return None
        for point in listed:
            one = NumberSet(low=point, high=point, literal_integers=numbers.literal_integers)
            # Readers round fractions to 64-bit floats, and then compare: of several that are equal then, one is a value.
            read = int(point) if point.denominator == 1 else float(point)
            points.setdefault(read, Shapes(numbers=(one,)))
    values.extend(points.values())
    names: set[str] = set()
    for strings in items.strings:
        if strings.only is None:
            return None
        names |= strings.only
    values.extend(Shapes(strings=(StringSet(only=frozenset([name])),)) for name in sorted(names))
    return values if len(values) <= MAX_VALUES else None
