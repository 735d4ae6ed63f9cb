"""Closing objects: without the members that their schemas do not mention.

JSON Schema leaves an object open unless its schema says otherwise. Models fill open objects with members that no caller reads.
All schemas that apply to an object count together, so parts of an ``allOf`` do not close one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from draftline.structured.json_schema.document import Dialect, Location
from draftline.structured.json_schema.shapes.demands import ANY, NEVER, Demand, Demands
from draftline.structured.json_schema.shapes.objects import Members, ObjectShape, settle_object
from draftline.structured.json_schema.shapes.strings import ALL_STRINGS
from draftline.structured.json_schema.shapes.union import Shapes

OPEN: Final[Demands] = frozenset([Demand(Location("open", {}, "", Dialect.DRAFT2020))])
"""Any value, of members that a schema says may be there: they stay when objects are closed."""

_SILENT: Final = (Members(ALL_STRINGS, ANY),)


def closed(shapes: Shapes) -> Shapes:
    """The same values, but objects that name properties and say nothing of other members have no others.

    An object that then would have no value stays open. So do objects without named properties: they are maps.
    """
    return replace(shapes, objects=tuple(dict.fromkeys(one for shape in shapes.objects for one in _closed(shape))))


def _closed(shape: ObjectShape) -> Iterator[ObjectShape]:
    named = any(value != NEVER for _, value in shape.named)
    without = list(settle_object(replace(shape, others=()), ())) if named and shape.others == _SILENT else []
    yield from without if without and not shape.some else [shape]
