"""The text of a syntax tree as an ECMA-262 pattern, the form in which JSON Schema carries it."""

from __future__ import annotations

from typing import Final

from draftline.structured.regular import charset
from draftline.structured.regular.charset import CharSet
from draftline.structured.regular.syntax import (
    Alt,
    Anchor,
    Chars,
    Lookahead,
    Lookbehind,
    Node,
    Seq,
    bracketed,
    count_text,
)

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
    return _group(tree.node) + count_text(tree.low, tree.high)


def whole(tree: Node) -> str:
    """The pattern that whole texts of an anchor-free tree match."""
    return f"^(?:{ecma_text(tree)})$"


def _group(tree: Node) -> str:
    return ecma_text(tree) if isinstance(tree, Chars) else f"(?:{ecma_text(tree)})"


def _class_text(characters: CharSet) -> str:
    if not characters:
        return "[]"
    if (code := charset.single(characters)) is not None:
        return "-" if code == ord("-") else _char_text(code)
    return bracketed(characters, _char_text)


def _char_text(code: int) -> str:
    character = chr(code)
    if character.isascii() and (character.isalnum() or character in _PLAIN):
        return character
    return f"\\{character}" if character in _SPECIAL else f"\\u{{{code:x}}}"
