"""Decimals and integers as digits in a string, with bounds and a limited number of digits."""

from __future__ import annotations

import functools
import math
from decimal import Decimal
from fractions import Fraction
from typing import Final

from draftline.structured.json_schema.decimals import plain_text
from draftline.structured.json_schema.multiples import divisible
from draftline.structured.json_schema.shapes.numbers import NumberSet
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

_MAX_MULTIPLE_DIGITS: Final = 18
"""The most digits of a multiple: a context of 28 digits must hold its quotient."""


@functools.lru_cache(maxsize=256)
def decimal_text(within: NumberSet, max_digits: int | None = None, decimal_places: int | None = None) -> Node:
    """The decimals of a set, in plain notation.

    Raises:
        TooComplexError, InexpressibleNumbersError: they have too many cases.
    """
    if within.step is not None and (max_digits is None or max_digits > _MAX_MULTIPLE_DIGITS):
        max_digits = _MAX_MULTIPLE_DIGITS
    # The next integer beyond a bound has a digit more than 999.
    beyond = [math.floor(abs(bound)) + 1 for bound in (within.low, within.high) if bound is not None]
    whole = max([MAX_WHOLE_DIGITS, *(len(str(number)) for number in beyond)])
    written = seq(optional(tree("-")), _digits(max_digits, decimal_places, whole))
    interval = NumberSet(within.low, within.low_open, within.high, within.high_open)
    if interval != NumberSet():
        written = both(written, plain_text(interval))
    if within.step is not None:
        written = to_tree(dfa.conjunction([dfa.Part(dfa.build(written)), dfa.Part(divisible(within.step))]))
    return written


@functools.lru_cache(maxsize=256)
def integer_text(within: NumberSet, max_digits: int) -> Node:
    """The integers of a set, of at most so many digits.

    Raises:
        TooComplexError, InexpressibleNumbersError: they have too many cases.
    """
    return decimal_text(within, max_digits, 0)


def _digits(max_digits: int | None, decimal_places: int | None, max_whole: int) -> Node:
    """Magnitudes of at most ``max_digits`` digits, at most ``decimal_places`` of them behind the point.

    Without ``max_digits``, at most ``max_whole`` are before it.
    """
    if max_digits is None:
        places = MAX_PLACES if decimal_places is None else decimal_places
        return tree(f"(?:0|[1-9][0-9]{{0,{max_whole - 1}}}){_fraction(places)}")
    if decimal_places is None and max_digits <= MAX_EXACT_DIGITS:
        small = f"0{_fraction(max_digits)}"
        longer = [f"[1-9][0-9]{{{whole - 1}}}{_fraction(max_digits - whole)}" for whole in range(1, max_digits + 1)]
        return alt(tree(option) for option in (small, *longer))
    places = max_digits // 3 if decimal_places is None else min(decimal_places, max_digits)
    whole = max_digits - places
    if whole == 0:
        # A zero before the point counts as a digit unless digits follow.
        return tree(f"0\\.[0-9]{{1,{places}}}")
    return tree(f"(?:0|[1-9][0-9]{{0,{whole - 1}}})" + _fraction(places))


def _fraction(places: int) -> str:
    return f"(?:\\.[0-9]{{1,{places}}})?" if places else ""


def exact(bound: float | Decimal) -> Fraction:
    """A bound as an exact number. Raises (OverflowError, ValueError) for infinity and NaN."""
    return Fraction(bound)
