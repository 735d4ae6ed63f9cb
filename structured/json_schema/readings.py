"""``Reading``: which values satisfy a format, a pattern or a discriminator, and which may do so. Validators differ in some.

The language of a schema has values that all validators accept. So it is read surely: strings satisfy a format if they do for
every validator, and do not if they do for none. That two schemas exclude each other has to hold for every validator too. So
proofs of it read schemas possibly: strings satisfy a format, or do not, if any validator says so. To JSON Schema a
``discriminator`` has no meaning, and to the readers of tagged unions an object without its tag is none of the options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from draftline.structured.json_schema.formats import (
    format_set,
    mentions_format,
    widest_format_set,
)
from draftline.structured.json_schema.shapes.strings import StringSet
from draftline.structured.regular import ecma
from draftline.structured.regular.syntax import Node


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of formats and patterns.

    Attributes:
        format_holds: the strings that satisfy a format; None for an unknown format.
        format_fails: the strings of which the others do not satisfy a format; None for an unknown format.
        pattern_holds: the tree of the strings in which a pattern is found.
        pattern_fails: the tree of the strings of which a pattern is not found in the others.
        discriminates: whether objects of a tagged `oneOf` or `anyOf` have the member with the tag.
    """

    format_holds: Callable[[str], StringSet | None]
    format_fails: Callable[[str], StringSet | None]
    pattern_holds: Callable[[str], Node]
    pattern_fails: Callable[[str], Node]
    discriminates: bool


SURELY: Final = Reading(format_set, widest_format_set, ecma.parse, ecma.parse_widest, discriminates=True)
POSSIBLY: Final = Reading(widest_format_set, format_set, ecma.parse_widest, ecma.parse, discriminates=False)


def readings_differ(schema: str) -> bool:
    """Whether the two readings of the text of a schema may differ."""
    tagged = "discriminator" in schema or ('"oneOf"' in schema and '"default"' in schema)
    return tagged or mentions_format(schema) or ecma.may_have_boundaries(schema)
