"""``Rivals``: which items and names the open ones of a document may still turn out to repeat."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Final, NamedTuple

from draftline.structured.unique.cursor import Cursor, Level, Position
from draftline.structured.unique.paths import UniquePaths
from draftline.structured.unique.values import Value, beginning_of, endings, may_become, string_of

_BACKSLASH: Final = ord("\\")


class Rivals(NamedTuple):
    """What the open item of an array, or the open name of an object's member, may still turn out to repeat.

    Attributes:
        depth: how many arrays and objects are open down to this one.
        item: where the item that is open begins.
        values: what it may repeat.
        seen: all items or names so far.
        is_name: whether a name is open.
    """

    depth: int
    item: int
    values: tuple[Value, ...]
    seen: frozenset[Value]
    is_name: bool = False


def rivals_at(cursor: Position, before: tuple[Rivals, ...], paths: UniquePaths) -> tuple[Rivals, ...]:
    """For each array whose open item may repeat one before it, these; and the names that the open one may repeat.

    Args:
        cursor: the position.
        before: the rivals at an earlier position: items that differed there still do.
        paths: where names may repeat.
    """
    if not cursor.comparing or not isinstance(cursor, Cursor):
        return ()
    known = {(one.depth, one.item): one for one in before}
    found: list[Rivals] = []
    levels = list(cursor.levels())
    for above, level in enumerate(levels):
        if not level.seen or level.item < 0:
            continue
        depth, text = len(levels) - above, cursor.recorded[level.item :]
        earlier = known.get((depth, level.item))
        if earlier is not None and earlier.seen is level.seen:
            values = tuple(value for value in earlier.values if may_become(text, value))
        else:
            values = _values_of(text, level.seen)
        if values:
            found.append(Rivals(depth, level.item, values, level.seen))
    names = _names(cursor, paths)
    if names:
        begun = beginning_of(cursor.recorded[cursor.text :]) if cursor.text >= 0 else ""
        repeated = tuple(name for name in names if name.startswith(begun))
        if repeated:
            item = next((level.item for level in levels if level.is_array), 0)
            found.append(Rivals(len(levels), max(item, 0), repeated, names, is_name=True))
    return tuple(found)


def _names(cursor: Cursor, paths: UniquePaths) -> frozenset[str]:
    """The names of which the one that is open, or may begin here, may be a repetition."""
    level = cursor.level
    return level.names if cursor.in_key and level is not None and paths.at(level.state).unnamed else frozenset()


@functools.lru_cache(maxsize=256)
def _values_of(text: bytes, seen: frozenset[Value]) -> tuple[Value, ...]:
    """The values that a text may become. Many tokens begin the next item alike."""
    return tuple(value for value in seen if may_become(text, value))


def by_next_byte(cursor: Cursor, rivals: tuple[Rivals, ...]) -> dict[int, tuple[Rivals, ...]] | None:
    """For each byte, the rivals that a text may still become behind it; None if every byte may lead to all of them."""
    begun = string_of(cursor.recorded[cursor.text :]) if cursor.text >= 0 else None
    if begun is None:
        return None
    found = {_BACKSLASH: rivals}
    for one in rivals:
        values: defaultdict[int, list[Value]] = defaultdict(list)
        for value in one.values:
            for byte in {byte for rest in endings(begun, value) for byte in rest}:
                values[byte].append(value)
        for byte in values.keys() - {_BACKSLASH}:
            found[byte] = (*found.get(byte, ()), one._replace(values=tuple(values[byte])))
    return found


def will_differ(cursor: Cursor, rivals: tuple[Rivals, ...], paths: UniquePaths) -> bool:
    """Whether the text can be made different from all rivals by what is still to come."""
    depths = [one.depth for one in rivals if not one.is_name or _names_run_out(cursor, paths)]
    return not depths or _varies_within(max(depths), cursor, paths)


def differs_in_any_case(cursor: Cursor, paths: UniquePaths) -> bool:
    """Whether `will_differ` is sure without knowing the rivals: finding them takes time for each item of an array."""
    if _names(cursor, paths) and _names_run_out(cursor, paths):
        return False
    levels = list(cursor.levels())
    depths = (len(levels) - above for above, level in enumerate(levels) if level.seen and level.item >= 0)
    innermost = max(depths, default=0)
    return not innermost or _varies_within(innermost, cursor, paths)


def _names_run_out(cursor: Cursor, paths: UniquePaths) -> bool:
    """Whether there may be no other name for the member that begins here."""
    return cursor.level is not None and paths.at(cursor.level.state).limited


def _varies_within(depth: int, cursor: Cursor, paths: UniquePaths) -> bool:
    """Whether something that never runs out is still to come in an item at a depth."""
    if not cursor.in_key:
        if cursor.text >= 0 and paths.at(cursor.state).text:
            return True
        if cursor.text < 0 and cursor.recorded.rstrip()[-1:] in (b",", b":") and paths.at(cursor.state).varied:
            return True  # a value must come here
    levels = list(cursor.levels())
    return any(_is_varied(level, paths) for level in levels[: len(levels) - depth])


def _is_varied(level: Level, paths: UniquePaths) -> bool:
    if level.is_array:
        return False
    here = paths.at(level.state)
    return here.open or bool(here.varied_members - level.names)
