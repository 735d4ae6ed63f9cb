"""``Cursor``: the position in a JSON document whose arrays may have to hold different strings.

The document is known to be well-formed, so only its structure is read. A cursor never changes: a matcher keeps one for each
token, and rolls back by dropping them.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from draftline.structured.unique.paths import UniquePaths

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPEN_ARRAY, _CLOSE_ARRAY, _OPEN_OBJECT, _CLOSE_OBJECT = b"[]{}"


class Level(NamedTuple):
    """An open array or object.

    Attributes:
        state: its state in the paths.
        is_array: whether it is an array.
        seen: its strings so far, if they have to differ; None otherwise.
        outer: the level around it.
    """

    state: int
    is_array: bool
    seen: frozenset[str] | None
    outer: Level | None


class Cursor(NamedTuple):
    """A position in a document.

    Attributes:
        level: the innermost open array or object.
        state: the state of the value that begins here.
        in_key: whether the string that is open, or that may begin here, is the name of a member.
        text: the raw bytes of the string that is open; None outside of strings.
        escaped: whether the byte before was a backslash.
    """

    level: Level | None = None
    state: int = 0
    in_key: bool = False
    text: bytes | None = None
    escaped: bool = False

    @property
    def seen(self) -> frozenset[str] | None:
        """The strings from which the one that is open has to differ; None if it is free."""
        return None if self.level is None or self.in_key or self.text is None else self.level.seen

    def step(self, byte: int, paths: UniquePaths) -> Cursor | None:
        """The position after a byte; None if the byte ends a string that has been there."""
        if self.text is None:
            return self._outside(byte, paths)
        if not self.escaped and byte == _QUOTE:
            return self._closed(self.text, paths)
        return self._replace(text=self.text + bytes([byte]), escaped=not self.escaped and byte == _BACKSLASH)

    def _outside(self, byte: int, paths: UniquePaths) -> Cursor:
        level = self.level
        if byte == _QUOTE:
            return self._replace(text=b"")
        if byte == _OPEN_ARRAY:
            seen = frozenset[str]() if paths.unique(self.state) else None
            return Cursor(Level(self.state, True, seen, level), paths.items(self.state))
        if byte == _OPEN_OBJECT:
            return Cursor(Level(self.state, False, None, level), in_key=True)
        if byte in (_CLOSE_ARRAY, _CLOSE_OBJECT) and level is not None:
            return Cursor(level.outer)
        if byte == _COMMA and level is not None:
            return Cursor(level, paths.items(level.state)) if level.is_array else Cursor(level, in_key=True)
        return self

    def _closed(self, text: bytes, paths: UniquePaths) -> Cursor | None:
        level = self.level
        if level is None:
            return Cursor()
        if self.in_key:
            return Cursor(level, paths.member(level.state, string_of(text) or ""))
        if level.seen is None:
            return Cursor(level, self.state)
        value = string_of(text) or ""
        return None if value in level.seen else Cursor(level._replace(seen=level.seen | {value}), self.state)


class Reasoning(NamedTuple):
    """A position in the reasoning before a document.

    Attributes:
        end: the mark behind it.
        begin: the begin mark, until all of it has come.
        begun: the bytes of it that have come.
        required: whether the document cannot come without reasoning.
        tail: the bytes behind the begin mark, as many as the end mark may begin with.
        level: no array or object is open, and no string.
        seen: likewise.
        text: likewise.
        escaped: likewise.
    """

    end: bytes
    begin: bytes
    begun: int = 0
    required: bool = True
    tail: bytes = b""
    level: None = None
    seen: None = None
    text: None = None
    escaped: bool = False

    def step(self, byte: int, paths: UniquePaths) -> Position | None:
        """The position after a byte: in the document behind the first end mark, or if there is no begin mark."""
        if self.begun < len(self.begin):
            if self.required or byte == self.begin[self.begun]:
                return self._replace(begun=self.begun + 1)
            cursor: Cursor | None = Cursor()
            for one in (*self.begin[: self.begun], byte):
                cursor = None if cursor is None else cursor.step(one, paths)
            return cursor
        tail = self.tail + bytes([byte])
        if tail.endswith(self.end):
            return Cursor()
        return self._replace(tail=tail[len(tail) - len(self.end) + 1 :] if len(tail) >= len(self.end) else tail)


Position = Cursor | Reasoning


def strings_differ(document: bytes, paths: UniquePaths) -> bool:
    """Whether the arrays of a document hold different strings where they have to."""
    cursor: Cursor | None = Cursor()
    for byte in document:
        if cursor is None:
            return False
        cursor = cursor.step(byte, paths)
    return cursor is not None


def string_of(text: bytes) -> str | None:
    """The string that raw bytes between quotes stand for; None if they end within a character or an escape."""
    try:
        value: str = json.loads(b'"' + text + b'"')
        value.encode()  # a lone surrogate is half a character
    except ValueError:
        return None
    return value
