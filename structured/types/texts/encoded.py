"""Bytes in base64 and in hexadecimal digits."""

from __future__ import annotations

from typing import Final

from draftline.structured.regular.syntax import EMPTY, NEVER, Node, alt, repeat, seq
from draftline.structured.types.texts.trees import tree

_STANDARD: Final = "[A-Za-z0-9+/]"
_URL_SAFE: Final = "[A-Za-z0-9_-]"


def base64_text(min_length: int = 0, max_length: int | None = None, url_safe: bool = False) -> Node:
    """The padded base64 texts of so many bytes, without bits that no byte uses."""
    digit = _URL_SAFE if url_safe else _STANDARD
    three = tree(f"{digit}{{4}}")
    ends = (EMPTY, tree(f"{digit}[AQgw]=="), tree(f"{digit}{{2}}[AEIMQUYcgkosw048]="))
    return _grouped(three, ends, min_length, max_length)


def base64_of_ascii() -> Node:
    """The padded base64 texts of ASCII texts, in either alphabet: they have neither of the two letters that differ."""
    first, second, third = "[A-Za-f]", "[A-HQ-Xg-nw-z0-3]", "[ABEFIJMNQRUVYZcdghklopstwx014589]"
    low = "[A-Za-z0-9]"
    three = tree(f"{first}{second}{third}{low}")
    ends = (EMPTY, tree(f"{first}[AQgw]=="), tree(f"{first}{second}[AEIMQUYcgkosw048]="))
    return _grouped(three, ends, 0, None)


def hex_text(min_length: int, max_length: int | None) -> Node:
    """Two hexadecimal digits for each byte."""
    return repeat(tree("[0-9a-f]{2}"), min_length, max_length)


def _grouped(three: Node, ends: tuple[Node, Node, Node], min_length: int, max_length: int | None) -> Node:
    options: list[Node] = []
    for rest, end in enumerate(ends):
        low = max(0, -(-(min_length - rest) // 3))
        high = None if max_length is None else (max_length - rest) // 3
        if high is None or high >= low:
            options.append(seq(repeat(three, low, high), end))
    return alt(options) if options else NEVER


def ascii_text(min_length: int, max_length: int | None) -> Node:
    """Printable ASCII: one byte for each character."""
    return repeat(tree("[ -~]"), min_length, max_length)
