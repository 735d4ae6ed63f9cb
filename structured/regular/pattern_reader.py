"""``PatternReader``: what the parsers of all dialects of patterns begin with."""

from __future__ import annotations

import re
from typing import Final

MAX_COUNT: Final = 100_000
"""The largest count of a repetition."""

MAX_NESTING: Final = 200
"""The most groups inside one another."""


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

    def match(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        """Go past what an expression matches here; None if it matches nothing."""
        found = expression.match(self.text, self.position)
        if found:
            self.position = found.end()
        return found
