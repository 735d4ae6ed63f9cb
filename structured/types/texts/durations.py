"""Durations as pydantic writes them: days, hours, minutes and seconds of ISO 8601, without years and months."""

from __future__ import annotations

import functools
import math
from datetime import timedelta
from fractions import Fraction
from typing import Final

from draftline.structured.json_schema.decimals import plain_text
from draftline.structured.json_schema.shapes.numbers import NumberSet
from draftline.structured.regular.syntax import NEVER, Node, alt, literal, seq
from draftline.structured.types.texts.trees import both, tree

_DAYS: Final = "(?:0|[1-9][0-9]{0,5})D"
_CLOCK: Final = (
    "T(?:(?:1?[0-9]|2[0-3])H(?:[1-5]?[0-9]M)?(?:[1-5]?[0-9](?:\\.[0-9]{1,6})?S)?"
    "|[1-5]?[0-9]M(?:[1-5]?[0-9](?:\\.[0-9]{1,6})?S)?|[1-5]?[0-9](?:\\.[0-9]{1,6})?S)"
)
_ANY: Final = f"-?P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK})"
_UNITS: Final = ((86_400, "P", "D", 6), (3_600, "PT", "H", 6), (60, "PT", "M", 7))
_MAX_SECONDS: Final = 10**9


@functools.lru_cache(maxsize=128)
def duration_text(low: timedelta | None, high: timedelta | None) -> Node:
    """The durations from ``low`` to ``high``. With bounds, each has one unit: P30D, PT36H, PT90M or PT5.5S."""
    if low is None and high is None:
        return tree(_ANY)
    options = [_unit(low, high, seconds, before, after, digits) for seconds, before, after, digits in _UNITS]
    fraction = "(?:\\.[0-9]{1,6})?"
    within = NumberSet(
        low=Fraction(-_MAX_SECONDS) if low is None else max(_seconds(low), Fraction(-_MAX_SECONDS)),
        high=Fraction(_MAX_SECONDS) if high is None else min(_seconds(high), Fraction(_MAX_SECONDS)),
    )
    options.append(_signed(within, "PT", "S", fraction))
    return alt(option for option in options if option != NEVER)


def _unit(low: timedelta | None, high: timedelta | None, seconds: int, before: str, after: str, digits: int) -> Node:
    most = Fraction(10**digits - 1)
    within = NumberSet(
        low=-most if low is None else max(Fraction(math.ceil(_seconds(low) / seconds)), -most),
        high=most if high is None else min(Fraction(math.floor(_seconds(high) / seconds)), most),
    )
    return _signed(within, before, after, "")


def _signed(within: NumberSet, before: str, after: str, fraction: str) -> Node:
    """The numbers of a set between two texts, with the sign in front of both."""
    magnitudes: list[Node] = []
    for sign, mirrored in (("", within), ("-", NumberSet(low=_negated(within.high), high=_negated(within.low)))):
        assert mirrored.low is not None
        low = max(mirrored.low, Fraction(0))
        part = NumberSet(
            low=low, low_open=low == 0 and sign != "", high=mirrored.high
        )  # no -0: old pydantics reject it
        if part.is_empty():
            continue
        written = both(plain_text(part), tree(f"(?:0|[1-9][0-9]*){fraction}"))
        if written != NEVER:
            magnitudes.append(seq(literal(sign + before), written, literal(after)))
    return alt(magnitudes)


def _negated(bound: Fraction | None) -> Fraction | None:
    return None if bound is None else -bound


def _seconds(duration: timedelta) -> Fraction:
    return Fraction(duration // timedelta(microseconds=1), 10**6)
