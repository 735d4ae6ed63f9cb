"""The separators of JSON under each whitespace policy, as syntax trees."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

from draftline.structured.json_schema.spelling import Whitespace
from draftline.structured.regular.syntax import EMPTY, Node, alt, literal, optional, repeat, seq

MAX_SPACES: Final = 4
"""Policy "free": the most spaces within a line."""

MAX_INDENT: Final = 64
"""Policy "free": the most spaces after a newline, if the depth is unknown."""

INDENT_STEP: Final = 8
"""Policy "free": the most spaces after a newline for each level of depth, if the depth is known."""


@dataclass(frozen=True, slots=True)
class Separators:
    """The punctuation of JSON with its whitespace.

    Attributes:
        colon: ":" and the whitespace after it.
        comma: "," and the whitespace after it.
        opened: the whitespace after an opening bracket.
        closing: the whitespace before a closing bracket.
    """

    colon: Node
    comma: Node
    opened: Node
    closing: Node


@functools.lru_cache(maxsize=256)
def separators(policy: Whitespace, depth: int | None = None) -> Separators:
    """The separators inside a bracket at ``depth`` (the outermost is 1), or at any depth if None."""
    if policy == "compact":
        return Separators(literal(":"), literal(","), EMPTY, EMPTY)
    if policy == "spaced":
        return Separators(literal(": "), literal(", "), EMPTY, EMPTY)
    space = literal(" ")
    few = repeat(space, 1, MAX_SPACES)
    indent = MAX_INDENT if depth is None else min(MAX_INDENT, INDENT_STEP * depth)
    line = seq(literal("\n"), repeat(space, 0, indent))
    between = optional(alt([few, line]))
    return Separators(seq(literal(":"), optional(few)), seq(literal(","), between), between, between)
