"""``Cursor``: the position in a JSON document whose arrays may have to hold different items.

The document is known to be well-formed, so only its structure is read. A cursor never changes: a matcher keeps one for each
token, and rolls back by dropping them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from draftline.structured.unique.paths import UniquePaths
from draftline.structured.unique.values import Value, readings_of, string_of, type_of

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPEN_ARRAY, _CLOSE_ARRAY, _OPEN_OBJECT, _CLOSE_OBJECT = b"[]{}"


class Level(NamedTuple):
    """An open array or object.

    Attributes:
        state: its state in the paths.
        is_array: whether it is an array.
        seen: its items so far that have to differ, as every reader reads them; None if none has to.
        outer: the level around it.
        item: where the item that is open begins in `Cursor.recorded`; -1 behind an item that has been compared.
        names: of an object inside what is compared, the names of its members so far. Readers would keep one of two alike.
    """

    state: int
    is_array: bool
    seen: frozenset[Value] | None
    outer: Level | None
    item: int = 0
    names: frozenset[str] = frozenset()


class Cursor(NamedTuple):
    """A position in a document.

    Attributes:
        level: the innermost open array or object.
        state: the state of the value that begins here.
        in_key: whether the string that is open, or that may begin here, is the name of a member.
        text: where in ``recorded`` the string that is open begins; -1 outside of strings.
        escaped: whether the byte before was a backslash.
        recorded: the text from the beginning of the outermost of these, or of the open string.
        comparing: how many arrays and objects are open whose items or names are compared.
    """

    level: Level | None = None
    state: int = 0
    in_key: bool = False
    text: int = -1
    escaped: bool = False
    recorded: bytes = b""
    comparing: int = 0

    def levels(self) -> Iterator[Level]:
        """The open arrays and objects, from the innermost one on."""
        level = self.level
        while level is not None:
            yield level
            level = level.outer

    def step(self, byte: int, paths: UniquePaths) -> Cursor | None:
        """The position after a byte; None if the byte ends an item or a name that has been there."""
        if self.text < 0:
            return self._outside(byte, paths)
        recorded = self.recorded + bytes([byte])
        if self.escaped or byte != _QUOTE:
            return self._replace(recorded=recorded, escaped=not self.escaped and byte == _BACKSLASH)
        level = self.level
        if self.in_key and level is not None:
            name = string_of(self.recorded[self.text :]) or ""
            if self.comparing:
                if name in level.names:
                    return None
                level = level._replace(names=level.names | {name})
            state = paths.at(level.state).member(name)
            return Cursor(level, state, False, -1, False, recorded if self.comparing else b"", self.comparing)
        return self._replace(text=-1, recorded=recorded if self.comparing else b"")._compared(paths)

    def _outside(self, byte: int, paths: UniquePaths) -> Cursor | None:
        here = self._replace(recorded=self.recorded + bytes([byte])) if self.comparing else self
        level = self.level
        if byte == _QUOTE:
            return here._replace(text=len(here.recorded))
        if byte == _OPEN_ARRAY:
            unique = bool(paths.at(self.state).unique)
            inside = Level(self.state, True, frozenset() if unique else None, level, len(here.recorded))
            return here._replace(level=inside, state=paths.at(self.state).items, comparing=self.comparing + unique)
        if byte == _OPEN_OBJECT:
            comparing = self.comparing + paths.at(self.state).distinct
            return here._replace(level=Level(self.state, False, None, level), in_key=True, comparing=comparing)
        if byte in (_CLOSE_ARRAY, _CLOSE_OBJECT) and level is not None:
            if self._ended(paths) is None:
                return None
            own = level.seen is not None if level.is_array else paths.at(level.state).distinct
            comparing = self.comparing - own
            left = here._replace(level=level.outer, in_key=False, comparing=comparing)
            return left._compared(paths) if comparing else left._replace(recorded=b"")
        if byte == _COMMA and level is not None:
            ended = self._ended(paths)
            if ended is None or ended.level is None:
                return None
            level = ended.level
            if not level.is_array:
                return here._replace(level=level, in_key=True)
            return here._replace(level=level._replace(item=len(here.recorded)), state=paths.at(level.state).items)
        return here

    def _ended(self, paths: UniquePaths) -> Cursor | None:
        """The position behind an item that ends where the array goes on or closes, as numbers do; None if it repeats."""
        level = self.level
        if level is None or level.seen is None or level.item < 0 or not self.recorded[level.item :].strip():
            return self
        return self._compared(paths)

    def _compared(self, paths: UniquePaths) -> Cursor | None:
        """The position behind an item of the innermost level, which has ended; None if it has been there."""
        level = self.level
        if level is None or level.seen is None:
            return self
        readings = readings_of(self.recorded[level.item :])
        if not readings or readings & level.seen:
            return None
        differing = {one for one in readings if type_of(one) in paths.at(level.state).unique}
        return self._replace(level=level._replace(seen=level.seen | differing, item=-1))


class ReasoningPosition(NamedTuple):
    """A position in the reasoning before a document.

    Attributes:
        end: the mark behind it.
        begin: the begin mark, until all of it has come.
        begun: the bytes of it that have come.
        required: whether the document cannot come without reasoning.
        tail: the bytes behind the begin mark, as many as the end mark may begin with.
        comparing: no array is open.
        text: no string is open.
    """

    end: bytes
    begin: bytes
    begun: int = 0
    required: bool = True
    tail: bytes = b""
    comparing: int = 0
    text: int = -1

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


Position = Cursor | ReasoningPosition


def strings_differ(document: bytes, paths: UniquePaths) -> bool:
    """Whether the arrays of a document hold different items where they have to."""
    cursor: Cursor | None = Cursor()
    for byte in document:
        if cursor is None:
            return False
        cursor = cursor.step(byte, paths)
    return cursor is not None
