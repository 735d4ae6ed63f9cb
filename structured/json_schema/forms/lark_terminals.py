"""The terminals of a Lark grammar: the scalars of a value, the names of members, and punctuation, each a lexeme.

A scalar is one terminal, whatever its type, so that the lexer tells it apart and the parser does not. Numbers that have no
regular expression have no terminal (`is_expressible`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from draftline.structured.json_schema.decimals import number_text
from draftline.structured.json_schema.forms.text import string_text
from draftline.structured.json_schema.multiples import InexpressibleNumbersError
from draftline.structured.json_schema.shapes.numbers import NumberSet
from draftline.structured.json_schema.shapes.strings import StringSet, string_tree
from draftline.structured.json_schema.shapes.union import Shapes
from draftline.structured.regular.dfa import TooComplexError
from draftline.structured.regular.syntax import (
    ANY_CHAR,
    ANY_TEXT,
    Node,
    alt,
    literal,
    repeat,
    to_regex,
)

_MAX_JOINED: Final = 1 << 16
"""The longest expression of several conditions on a string."""


class LarkTerminals:
    """Names the terminals of one grammar. Equal terminals have one name."""

    def __init__(self) -> None:
        """No terminals yet."""
        self._names: dict[str, str] = {}

    def lines(self) -> list[str]:
        """The definitions of all terminals."""
        return [f"{name}: {body}" for body, name in self._names.items()]

    def text(self, tree: Node) -> str:
        """The terminal of the texts of a tree."""
        return self._named(f"/{to_regex(tree)}/")

    def scalar(self, shapes: Shapes) -> str:
        """The terminal of all scalars of a value; empty if there are none."""
        words = [literal("null")] if shapes.null else []
        words.extend(literal("true" if value else "false") for value in sorted(shapes.booleans))
        for numbers in shapes.numbers:
            if (text := _number_text(numbers)) is not None:
                words.append(text)
        bodies = []
        for strings in shapes.strings:
            if _is_plain(strings):
                words.append(string_text(string_tree(strings)))
            else:
                bodies.append(self._string_body(strings))
        if words:
            bodies.insert(0, f"/{to_regex(alt(words))}/")
        return self._named(" | ".join(bodies)) if bodies else ""

    def member_name(self, names: StringSet) -> str:
        """The terminal of a member's name."""
        if _is_plain(names):
            return self.text(string_text(string_tree(names)))
        return self._named(self._string_body(names))

    def _string_body(self, strings: StringSet) -> str:
        """The quoted strings of a set, as a Lark expression over regular expressions."""

        def text(tree: Node) -> str:
            return f"/{to_regex(string_text(tree))}/"

        length = repeat(ANY_CHAR, strings.min_length, strings.max_length)
        if length != ANY_TEXT and (joined := _joined(strings)) is not None:
            return f"({text(length)} & {joined})"
        parts = [text(pattern) for pattern in sorted(strings.patterns, key=to_regex)]
        if length != ANY_TEXT or not parts:
            parts.insert(0, text(length))
        parts.extend(f"~{text(pattern)}" for pattern in sorted(strings.not_patterns, key=to_regex))
        if strings.without:
            parts.append(f"~{text(alt(literal(value) for value in sorted(strings.without)))}")
        body = " & ".join(parts)
        return body if len(parts) == 1 else f"({body})"

    def _named(self, body: str) -> str:
        return self._names.setdefault(body, f"T{len(self._names)}")


def is_scalar(shapes: Shapes) -> bool:
    """Whether one terminal covers all shapes."""
    return not shapes.arrays and not shapes.objects and all(map(is_expressible, shapes.numbers))


def is_expressible(numbers: NumberSet) -> bool:
    """Whether the numbers have a regular expression."""
    return _number_text(numbers) is not None


def _number_text(numbers: NumberSet) -> Node | None:
    try:
        return number_text(numbers)
    except InexpressibleNumbersError:
        return None


def _is_plain(strings: StringSet) -> bool:
    """Whether `string_tree` writes the set without automata."""
    if strings.only is not None or strings == StringSet(strings.min_length, strings.max_length):
        return True
    return len(strings.patterns) == 1 and strings == StringSet(patterns=strings.patterns)


def _joined(strings: StringSet) -> str | None:
    """One expression for all conditions but the length; None if there is one condition only, or no short expression.

    llguidance looks for a text that meets all expressions of an intersection. With a count among three, its search can go
    through all lengths, and exceeds the limit of a mask.
    """
    if len(strings.patterns) + len(strings.not_patterns) + bool(strings.without) < 2:
        return None
    try:
        regex = to_regex(string_text(string_tree(replace(strings, min_length=0, max_length=None))))
    except TooComplexError:
        return None
    return f"/{regex}/" if len(regex) <= _MAX_JOINED else None
