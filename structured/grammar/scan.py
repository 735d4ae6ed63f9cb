"""``GrammarScan``: the position in a text of a grammar, byte by byte and without a vocabulary."""

from __future__ import annotations

from functools import cache

from llguidance import LLMatcher, LLTokenizer


class GrammarScan:
    """The position in a text of a grammar. It changes itself, so two are never equal.

    Attributes:
        lasts: whether readings may keep it.
    """

    lasts = False

    def __init__(self, grammar: str) -> None:
        """At the beginning of a text. The grammar is in Lark, with llguidance's extensions."""
        self._matcher = LLMatcher(_bytes(), LLMatcher.grammar_from_lark(grammar), log_level=0)

    @property
    def complete(self) -> bool:
        """Whether the text can end here."""
        return self._matcher.is_accepting()

    def step(self, byte: int) -> GrammarScan | None:
        """The position after a byte; None if the byte cannot follow."""
        return self if self._matcher.try_consume_tokens([byte]) else None


@cache
def _bytes() -> LLTokenizer:
    """The vocabulary of llguidance in which every byte is a token."""
    return LLTokenizer("byte")
