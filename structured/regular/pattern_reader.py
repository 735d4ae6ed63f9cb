"""``PatternReader``: what the parsers of all dialects of patterns begin with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_MAX_COUNT: Final = 100_000
"""The largest count of a repetition."""

_SIGNS: Final[Mapping[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}

MAX_NESTING: Final = 200
"""The most groups inside one another."""


class UntranslatablePatternError(ValueError):
    """The pattern is malformed, or uses a construct without a translation. The message names it."""


class PatternReader:
    """A pattern, and how far it is read.

    Attributes:
        text: the pattern.
        position: the index of the next character.
    """

    def __init__(self, pattern: str) -> None:
        """At the beginning of a pattern."""
        self.text = pattern
        self.position = 0

    def peek(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.position : self.position + 1]

    def eat(self, prefix: str) -> bool:
        """Go past a text, if it comes next; return whether it does."""
        found = self.text.startswith(prefix, self.position)
        if found:
            self.position += len(prefix)
        return found

    def counts(self, braces: re.Pattern[str]) -> tuple[int, int | None] | None:
        """Go past a quantifier, if one comes next: how often at least, and at most (None: without bound).

        ``braces`` is a count in braces: its groups are the minimum, what follows that, and the maximum.
        """
        for sign, known in _SIGNS.items():
            if self.eat(sign):
                return known
        found = self.match(braces)
        if found is None:
            return None
        low = int(found[1] or 0)
        high = low if found[2] is None else int(found[3]) if found[3] else None
        if max(low, high or 0) > _MAX_COUNT:
            raise UntranslatablePatternError(f"a repetition of more than {_MAX_COUNT}")
        return low, high

    def match(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        """Go past what an expression matches here; None if it matches nothing."""
        found = expression.match(self.text, self.position)
        if found:
            self.position = found.end()
        return found
