"""Durations of ISO 8601 in days, hours, minutes and seconds. Only seconds have a fraction."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import timedelta
from fractions import Fraction
from typing import Final

from draftline.structured.json_schema.decimals import plain_text
from draftline.structured.json_schema.shapes.numbers import NumberSet
from draftline.structured.regular.syntax import EMPTY, NEVER, Node, alt, literal, optional, seq
from draftline.structured.types.texts.trees import both, tree

_NUMBER: Final = "(?:0|[1-9][0-9]{0,5})"
_SECONDS: Final = f"{_NUMBER}(?:\\.[0-9]{{1,6}})?S"
_CLOCK: Final = f"T(?:{_NUMBER}H(?:{_NUMBER}M)?(?:{_SECONDS})?|{_NUMBER}M(?:{_SECONDS})?|{_SECONDS})"
_ANY: Final = f"P(?:{_NUMBER}D(?:{_CLOCK})?|{_CLOCK})"

_ZERO: Final = timedelta(0)
_TICK: Final = timedelta(microseconds=1)
_MAX: Final = timedelta(days=10**6) - _TICK
_MAX_CLOCK: Final = timedelta(seconds=10**9)
"""The longest duration without days."""

_UNITS: Final = (
    (timedelta(days=1), "D"),
    (timedelta(hours=1), "H"),
    (timedelta(minutes=1), "M"),
    (timedelta(seconds=1), "S"),
)


@functools.lru_cache(maxsize=128)
def duration_text(low: timedelta | None, high: timedelta | None) -> Node:
    """The durations from ``low`` to ``high``.

    With bounds, each has one unit, as in P30D, PT36H, PT90M or PT5.5S, or several with less than 24 hours, 60 minutes and 60
    seconds, as in P1DT2H30M.
    """
    if low is None and high is None:
        return tree(f"-?{_ANY}")
    low = -_MAX if low is None else max(low, -_MAX)
    high = _MAX if high is None else min(high, _MAX)
    # There is no -0: old pydantics reject it.
    return alt([*_signed("", max(low, _ZERO), high), *_signed("-", max(-high, _TICK), -low)])


def _signed(sign: str, low: timedelta, high: timedelta) -> Iterator[Node]:
    """The durations between two that are not negative, with a sign before them."""
    if low > high:
        return
    yield both(seq(literal(f"{sign}P"), _parts(low, high, 0)), tree(sign + _ANY))
    for size, letter in _UNITS:
        if letter == "D":
            yield seq(literal(f"{sign}P"), _count(low, high, size, letter))
        else:
            yield seq(literal(f"{sign}PT"), _count(low, min(high, _MAX_CLOCK), size, letter))


def _parts(low: timedelta, high: timedelta, index: int) -> Node:
    """The parts of durations from one unit on. Those that are zero may be missing, and a T may stand behind the days."""
    size, letter = _UNITS[index]
    if letter == "S":
        counts = _count(low, high, size, letter)
        return counts if low else optional(counts)
    rest = size - _TICK
    first, last = low // size * size, high // size * size
    cases = [(first, last, low - first, high - last)]
    if first < last:
        # Behind the counts between the first and the last one, all that is less than a unit may follow.
        cases = [
            (first, first, low - first, rest),
            (first + size, last - size, _ZERO, rest),
            (last, last, _ZERO, high - last),
        ]
    between = optional(literal("T")) if letter == "D" else EMPTY
    options: list[Node] = []
    for least, most, rest_least, rest_most in cases:
        counts = _count(least, most, size, letter)
        options.append(seq(counts if least else optional(counts), between, _parts(rest_least, rest_most, index + 1)))
    return alt(option for option in options if option != NEVER)


def _count(low: timedelta, high: timedelta, size: timedelta, letter: str) -> Node:
    """The numbers of a unit that make durations between two, with its letter. Seconds have a fraction."""
    step = _TICK if letter == "S" else size
    numbers = NumberSet(low=Fraction(-(-low // step), size // step), high=Fraction(high // step, size // step))
    if numbers.is_empty():
        return NEVER
    written = tree("(?:0|[1-9][0-9]*)" + ("(?:\\.[0-9]{1,6})?" if letter == "S" else ""))
    return seq(both(plain_text(numbers), written), literal(letter))
