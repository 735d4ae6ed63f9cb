"""Dates, times and datetimes as ISO 8601 writes them, from the year 1 to 9999, with bounds.

Seconds are always written, with up to six decimals. An offset is Z, or up to 23:59. There are no leap seconds: Python has none.
"""

from __future__ import annotations

import functools
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, Literal

from draftline.structured.regular.syntax import EMPTY, Node, alt, literal, seq
from draftline.structured.types.texts.trees import at_least, at_most, both, tree

Zone = Literal["any", "aware", "naive"] | int
"""Whether a text has an offset from UTC; a number is this offset in seconds."""

_FOUR_YEARS: Final = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR: Final = f"(?:[0-9]{{2}}{_FOUR_YEARS}|{_FOUR_YEARS}00)"
_YEAR: Final = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DATE: Final = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME: Final = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?"
_OFFSET: Final = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TICK: Final = timedelta(microseconds=1)


@functools.lru_cache(maxsize=256)
def date_text(low: date, high: date) -> Node:
    """The dates from ``low`` to ``high``."""
    if (low, high) == (date.min, date.max):
        return tree(_DATE)
    return both(tree(_DATE), at_least(low.isoformat()), at_most(high.isoformat()))


@functools.lru_cache(maxsize=256)
def time_text(low: time | None, high: time | None, zone: Zone) -> Node:
    """The times from ``low`` to ``high``, which have one offset or none."""
    parts = [tree(_TIME)]
    if low is not None:
        parts.append(at_least(low.replace(tzinfo=None).isoformat()))
    if high is not None:
        parts.append(at_most(high.replace(tzinfo=None).isoformat("microseconds")))
    return seq(both(*parts) if len(parts) > 1 else parts[0], _zone_text(zone, low, high))


@functools.lru_cache(maxsize=256)
def datetime_text(low: datetime | None, high: datetime | None, zone: Zone) -> Node:
    """The datetimes from ``low`` to ``high``. With bounds, the offset is UTC's, or there is none."""
    suffix = _zone_text(zone, low, high)
    low, high = (_wall(bound, zone) for bound in (low, high))
    least = datetime.min if low is None else low
    most = datetime.max if high is None else high
    wall = seq(date_text(least.date(), most.date()), literal("T"), tree(_TIME))
    if low is not None:
        wall = both(wall, at_least(low.isoformat()))
    if high is not None:
        wall = both(wall, at_most(high.isoformat(timespec="microseconds")))
    return seq(wall, suffix)


def time_after(bound: time) -> time:
    """The next time; OverflowError for the last one."""
    moved = datetime.combine(date(2000, 1, 1), bound) + _TICK
    if moved.day != 1:
        raise OverflowError("no time is later")
    return moved.timetz()


def time_before(bound: time) -> time:
    """The last time before this one; OverflowError for the first one."""
    moved = datetime.combine(date(2000, 1, 2), bound) - _TICK
    if moved.day != 2:
        raise OverflowError("no time is earlier")
    return moved.timetz()


def _wall(bound: datetime | None, zone: Zone) -> datetime | None:
    """A bound as texts of a zone are compared with it: texts without an offset ignore that of the bound."""
    if bound is None or bound.tzinfo is None:
        return bound
    return (bound if zone == "naive" else bound.astimezone(UTC)).replace(tzinfo=None)


def _zone_text(zone: Zone, low: time | datetime | None, high: time | datetime | None) -> Node:
    bounds = [bound for bound in (low, high) if bound is not None]
    if isinstance(zone, int):
        sign, minutes = "-" if zone < 0 else "+", abs(zone) // 60
        return literal(f"{sign}{minutes // 60:02d}:{minutes % 60:02d}")
    if not bounds:
        some = tree(_OFFSET)
        return EMPTY if zone == "naive" else some if zone == "aware" else alt([EMPTY, some])
    if zone == "any":
        zone = "naive" if all(bound.tzinfo is None for bound in bounds) else "aware"
    return EMPTY if zone == "naive" else literal("Z")
