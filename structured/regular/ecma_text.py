"""The text of a syntax tree as an ECMA-262 pattern, the form in which JSON Schema carries it."""

from __future__ import annotations

from typing import Final

from draftline.structured.regular import charset
from draftline.structured.regular.charset import CharSet
from draftline.structured.regular.syntax import Alt, Anchor, Chars, Lookahead, Lookbehind, Node, Repeat, Seq

_PLAIN: Final = frozenset(" !\"#%&',:;<=>@_`~")
_SPECIAL: Final = frozenset("$()*+./?[\\]^{|}")


def ecma_text(tree: Node) -> str:
    """The pattern whose searches find what searches for the tree find; its conditions stay."""
    if isinstance(tree, Chars):
        return _class_text(tree.set)
    if isinstance(tree, Anchor):
        return "$" if tree.end else "^"
    if isinstance(tree, Lookahead):
        return f"(?{'=' if tree.inside else '!'}{ecma_text(tree.node)})"
    if isinstance(tree, Lookbehind):
        return f"(?<{'=' if tree.inside else '!'}{ecma_text(tree.node)})"
    if isinstance(tree, Seq):
        return "".join(f"(?:{ecma_text(part)})" if isinstance(part, Alt) else ecma_text(part) for part in tree.parts)
    if isinstance(tree, Alt):
        return "|".join(ecma_text(option) for option in tree.options)
    return _group(tree.node) + _count_text(tree)


def whole(tree: Node) -> str:
    """The pattern that whole texts of an anchor-free tree match."""
    return f"^(?:{ecma_text(tree)})$"


def _group(tree: Node) -> str:
    return ecma_text(tree) if isinstance(tree, Chars) else f"(?:{ecma_text(tree)})"


def _count_text(tree: Repeat) -> str:
    low, high = tree.low, tree.high
    if high is None:
        return "*" if low == 0 else "+" if low == 1 else f"{{{low},}}"
    if (low, high) == (0, 1):
        return "?"
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


def _class_text(characters: CharSet) -> str:
    if not characters:
        return "[]"
    if len(characters) == 1 and characters[0][0] == characters[0][1]:
        return "-" if characters[0][0] == ord("-") else _char_text(characters[0][0])
    outside = charset.complement(characters)
    negated = len(outside) < len(characters)
    ranges = outside if negated else characters
    inside = "".join(
        _char_text(low) if low == high else f"{_char_text(low)}-{_char_text(high)}" for low, high in ranges
    )
    return f"[{'^' if negated else ''}{inside}]"


def _char_text(code: int) -> str:
    character = chr(code)
    if character.isascii() and (character.isalnum() or character in _PLAIN):
        return character
    return f"\\{character}" if character in _SPECIAL else f"\\u{{{code:x}}}"
