"""Anchors of a regular expression that must match a whole text.

There "^" at the beginning and "$" at the end say nothing, but people write them, and an automaton that is built for
whole texts cannot look behind its beginning.
"""

from __future__ import annotations

from draftline.structured.errors import InvalidConstraintError

_OPENING = ("^", r"\A")
_CLOSING = ("$", r"\z")


def without_outer_anchors(regex: str) -> str:
    """The same expression, without anchors at either end of its top-level alternatives. It has to match whole texts.

    Raises:
        InvalidConstraintError: an opening anchor stands elsewhere, or a group ends that did not begin.
    """
    stripped = [_strip(alternative) for alternative in _alternatives(regex)]
    if any(piece in _OPENING for alternative in stripped for piece in alternative):
        raise InvalidConstraintError(
            f'"^" and "{_OPENING[1]}" are supported at the beginning only, where they are redundant: the whole text has to match'
        )
    return "|".join(map("".join, stripped))


def _strip(alternative: list[str]) -> list[str]:
    begin, end = 0, len(alternative)
    while begin < end and alternative[begin] in _OPENING:
        begin += 1
    while begin < end and alternative[end - 1] in _CLOSING:
        end -= 1
    return alternative[begin:end]


def _alternatives(regex: str) -> list[list[str]]:
    """The top-level alternatives, each split into escapes, character classes and single characters."""
    alternatives: list[list[str]] = [[]]
    depth = index = 0
    while index < len(regex):
        width = 2 if regex[index] == "\\" else 1
        piece = _class_at(regex, index) if regex[index] == "[" else regex[index : index + width]
        index += len(piece)
        depth += (piece == "(") - (piece == ")")
        if depth < 0:
            raise InvalidConstraintError(f"not a supported regular expression: unopened group at character {index}")
        if piece == "|" and not depth:
            alternatives.append([])
        else:
            alternatives[-1].append(piece)
    return alternatives


def _class_at(regex: str, begin: int) -> str:
    """The character class that begins at an index, with the classes nested in it."""
    index, depth = begin, 0
    while index < len(regex):
        character = regex[index]
        index += 2 if character == "\\" else 1
        depth += (character == "[") - (character == "]")
        if character == "[":
            # A "]" that comes first is a character of the class.
            index += regex.startswith("^", index)
            index += regex.startswith("]", index)
        if not depth:
            break
    return regex[begin:index]
