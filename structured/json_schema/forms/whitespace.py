"""What stands between JSON's tokens under each whitespace policy, as trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from draftline.structured.language import Whitespace
from draftline.structured.regular.syntax import EMPTY, Node, alt, literal, optional, repeat, seq

MAX_SPACES: Final = 4
"""Under "free": spaces within a line."""

MAX_INDENT: Final = 64
"""Under "free": spaces after a newline, where the depth is not known."""

INDENT_STEP: Final = 8
"""Under "free": spaces after a newline for each level of depth, where that is known."""


@dataclass(frozen=True, slots=True)
class Separators:
    """JSON's punctuation with its whitespace.

    Attributes:
        colon: ":" and what follows it.
        comma: "," and what follows it.
        opened: what follows an opening bracket.
        closing: what precedes a closing bracket.
    """

    colon: Node
    comma: Node
    opened: Node
    closing: Node


def separators(policy: Whitespace, depth: int | None = None) -> Separators:
    """The separators inside a bracket at ``depth`` (the outermost is at 1), or at any depth."""
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
