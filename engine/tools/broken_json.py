"""Where an incomplete JSON document broke off."""

from __future__ import annotations

import json

from draftline.engine.outputs import BrokenOff


def broken_off(text: str, start: int = 0) -> BrokenOff:
    """The innermost part of a document that is not finished.

    Args:
        text: a text.
        start: where the document begins, in characters: the beginning of a well-formed one, whose end may be missing.
    """
    path: list[str | int] = []  # the name or index of the value that is being read, for each open bracket
    brackets: list[str] = []
    begin = start  # of the value, or of the name, that is being read
    reading = in_key = False
    index = start
    while index < len(text):
        character = text[index]
        if character == '"':
            end = _string_end(text, index)
            begin, reading = index, True
            if end is None:
                break
            if in_key:
                path[-1], in_key = json.loads(text[index:end]), False
            index, reading = end, False
            begin = end
            continue
        if character in "[{":
            brackets.append(character)
            path.append(0 if character == "[" else "")
            in_key, reading = character == "{", False
            begin = index + 1
        elif character in "]}":
            brackets.pop()
            path.pop()
            in_key, reading = False, False
            begin = index + 1
        elif character == ",":
            last = path[-1]
            if isinstance(last, int):
                path[-1] = last + 1
            in_key, reading = brackets[-1] == "{", False
            begin = index + 1
        elif character == ":":
            begin = index + 1
        elif character not in " \t\r\n" and not reading:
            begin, reading = index, True
        index += 1
    if not reading:
        begin = len(text) if text[begin:].strip() == "" else begin
    names = path[:-1] if in_key else path
    pointer = "".join("/" + str(name).replace("~", "~0").replace("/", "~1") for name in names)
    return BrokenOff(pointer, len(text[:begin].encode()))


def _string_end(text: str, start: int) -> int | None:
    index = start + 1
    while index < len(text):
        if text[index] == "\\":
            index += 1
        elif text[index] == '"':
            return index + 1
        index += 1
    return None
