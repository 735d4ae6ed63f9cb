"""Decimals and integers as digits in a string, with bounds and a limited number of digits."""

from __future__ import annotations

import functools
import math
from decimal import Decimal
from fractions import Fraction
from typing import Final

from draftline.structured.json_schema.decimals import plain_text
from draftline.structured.json_schema.multiples import divisible
from draftline.structured.json_schema.shapes.numbers import NumberSet, meet
from draftline.structured.regular import dfa
from draftline.structured.regular.expression import to_tree
from draftline.structured.regular.syntax import Node, alt, optional, seq
from draftline.structured.types.texts.trees import both, tree

MAX_WHOLE_DIGITS: Final = 18
MAX_PLACES: Final = 10
"""The most digits before and behind the point without ``max_digits``: 28, as in Python's default context. A limit ends the
answer of a small model that repeats a digit. A bound with more digits before the point allows as many."""

MAX_EXACT_DIGITS: Final = 12
"""With up to this many digits in all, the point may be at any place; with more, a third of them may be behind it."""

MAX_MULTIPLE_DIGITS: Final = 18
"""The most digits of a multiple, unless a bound has more: each digit takes a state for each remainder."""

_QUOTIENTS: Final = 10**28
"""The multiples of a step from here on are left out: pydantic divides in Python's default context, of 28 digits."""


@functools.lru_cache(maxsize=256)
def decimal_text(within: NumberSet, max_digits: int | None = None, decimal_places: int | None = None) -> Node:
    """The decimals of a set, in plain notation.

    Raises:
        TooComplexError, InexpressibleNumbersError: they have too many cases.
    """
    # The next integer beyond a bound has a digit more than 999.
    beyond = [math.floor(abs(bound)) + 1 for bound in (within.low, within.high) if bound is not None]
    whole = max((len(str(number)) for number in beyond), default=0)
    if within.step is not None:
        if max_digits is None and decimal_places is not None:
            decimal_places = min(decimal_places, 2 * MAX_MULTIPLE_DIGITS // 3)  # digits before the point need room, too
        most = max(MAX_MULTIPLE_DIGITS, whole + (decimal_places or 0))
        max_digits = most if max_digits is None else min(max_digits, most)
        largest = within.step * _QUOTIENTS
        within = meet(within, NumberSet(-largest, True, largest, True))
    written = seq(optional(tree("-")), _digits(max_digits, decimal_places, max(whole, MAX_WHOLE_DIGITS)))
    interval = NumberSet(within.low, within.low_open, within.high, within.high_open)
    if interval != NumberSet():
        written = both(written, plain_text(interval))
    if within.step is not None:
        written = to_tree(dfa.conjunction([dfa.Part(dfa.build(written)), dfa.Part(divisible(within.step))]))
    return written


def _digits(max_digits: int | None, decimal_places: int | None, max_whole: int) -> Node:
    """Magnitudes of at most ``max_digits`` digits, at most ``decimal_places`` of them behind the point.

    Without ``max_digits``, at most ``max_whole`` are before it.
    """
    if max_digits is None:
        places = MAX_PLACES if decimal_places is None else decimal_places
        return tree(f"(?:0|[1-9][0-9]{{0,{max_whole - 1}}}){_fraction(places)}")
    if decimal_places is None:
        places = max_digits if max_digits <= MAX_EXACT_DIGITS else max_digits // 3
    else:
        places = min(decimal_places, max_digits)
    whole = max_digits - places
    if decimal_places is not None and whole == 0:
        # A zero before the point counts as a digit unless digits follow.
        return tree(f"0\\.[0-9]{{1,{places}}}")
    short = f"(?:0|[1-9][0-9]{{0,{whole - 1}}})" if whole else "0"
    options = [short + _fraction(places)]
    if decimal_places is None:
        # The point may be further behind, where fewer digits follow it.
        longer = range(whole + 1, max_digits + 1)
        options += [f"[1-9][0-9]{{{digits - 1}}}{_fraction(max_digits - digits)}" for digits in longer]
    return alt(tree(option) for option in options)


def _fraction(places: int) -> str:
    return f"(?:\\.[0-9]{{1,{places}}})?" if places else ""


def exact(bound: float | Decimal) -> Fraction:
    """A bound as an exact number. Raises (OverflowError, ValueError) for infinity and NaN."""
    return Fraction(bound)
