"""The JSON texts of a set of numbers, as syntax trees over the characters of the text.

Every number can be written in plain notation, like -12.50. Scientific notation is allowed for all exponents of a 64-bit
float if there are no conditions. For bounded numbers it is allowed where json.dumps writes it: from 1e16 on, and below
1e-4 if all these magnitudes lie in the set. An integer may also be written 1.0: JSON Schema has accepted that since
draft 6, and json.dumps writes integral floats so.

Values are compared as decimals, but most readers round a text with a fraction or an exponent to a 64-bit float before
validation. So such texts have bounds of their own: texts that rounding would carry out of the set are excluded. From 2^53
on, where floats are integers, the float decides. Fractions have at most 15 digits if divisibility matters.

Numbers of format "double" are written as serialisers write 64-bit floats: in plain notation below 1e16, with an exponent
from there on. So no text overflows to infinity, nor underflows to an excluded zero.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Final

from draftline.structured.json_schema.multiples import InexpressibleNumbersError, divisible
from draftline.structured.json_schema.shapes.numbers import Bound, NumberSet, excluding_read, with_bounds
from draftline.structured.regular import charset, dfa
from draftline.structured.regular.digit_ranges import (
    DIGIT,
    FRACTION,
    INTEGER,
    NONZERO,
    POINT,
    ZERO,
    between_integers,
    decimal_text,
    digit_class,
    integer_range,
    plain_range,
)
from draftline.structured.regular.expression import to_tree
from draftline.structured.regular.syntax import EMPTY, NEVER, Chars, Node, alt, literal, optional, repeat, seq

FLOAT_DIGITS = 15
"""Different decimals of up to this many digits are different 64-bit floats."""

MAX_LISTED = 256
"""Sets of up to this many numbers are written as a list."""

_MINUS: Final = literal("-")
_MANTISSA: Final = seq(NONZERO, optional(FRACTION))
_SCIENTIFIC: Final = seq(_MANTISSA, Chars(charset.of("eE")))
_LARGE_EXPONENT: Final = alt(
    [
        seq(digit_class(1, 2), DIGIT, DIGIT),
        seq(literal("30"), digit_class(0, 7)),
        seq(optional(ZERO), DIGIT, DIGIT),
        DIGIT,
    ]
)
_FROM_1E16: Final = alt(
    [
        seq(digit_class(1, 2), DIGIT, DIGIT),
        seq(literal("30"), digit_class(0, 7)),
        seq(literal("1"), digit_class(6, 9)),
        seq(digit_class(2, 9), DIGIT),
    ]
)
_BELOW_1E_307: Final = alt(
    [seq(literal("30"), digit_class(8, 9)), seq(literal("31"), DIGIT), seq(literal("32"), digit_class(0, 4))]
)
_ABOVE_1E_307: Final = alt(
    [
        seq(digit_class(1, 2), DIGIT, DIGIT),
        seq(literal("30"), digit_class(0, 7)),
        seq(optional(ZERO), digit_class(5, 9)),
        seq(NONZERO, DIGIT),
    ]
)
_BELOW_1E_4: Final = alt([_ABOVE_1E_307, _BELOW_1E_307])
_PLUS: Final = seq(Chars(charset.of("eE")), optional(literal("+")))
_LARGEST_TEXT: Final = Fraction("1.7976931348623158e308")
"""Readers find the largest float in it, and infinity a little further."""
_ANY: Final = seq(
    optional(_MINUS),
    alt(
        [
            seq(INTEGER, optional(FRACTION)),
            seq(_SCIENTIFIC, optional(Chars(charset.of("+-"))), _LARGE_EXPONENT),
            seq(plain_range(Fraction(1), False, _LARGEST_TEXT / 10**308, False), _PLUS, literal("308")),
            seq(_SCIENTIFIC, _MINUS, _BELOW_1E_307),
        ]
    ),
)
_LARGE_INTEGER: Final = seq(NONZERO, optional(seq(POINT, repeat(DIGIT, 1, 16))), _PLUS, _FROM_1E16)
_LARGEST: Final = Fraction(sys.float_info.max)
_LONGEST_BOUND: Final = Fraction(10**100)
_LONGEST_PLAIN: Final = Fraction(10**40)
_LARGEST_PLAIN: Final = Fraction(10**16)
_SMALLEST_PLAIN: Final = Fraction(1, 10**4)


def number_text(numbers: NumberSet) -> Node:
    """The syntax tree of the texts of a set.

    Raises:
        InexpressibleNumbersError: it exceeds a budget.
    """
    found = _number_text(numbers)
    if isinstance(found, str):
        raise InexpressibleNumbersError(found)
    return found


@functools.lru_cache(maxsize=1024)
def _number_text(numbers: NumberSet) -> Node | str:
    """The syntax tree, or the budget that it exceeds: it is asked for several times, and takes longest where there is none."""
    try:
        return _written(numbers)
    except InexpressibleNumbersError as error:
        return str(error)


def _written(numbers: NumberSet) -> Node:
    if numbers == NumberSet():
        return _ANY
    numbers = excluding_read(numbers)
    floats = as_read(numbers)
    listed = numbers.values(MAX_LISTED)
    if listed is not None:
        if not numbers.is_point():
            listed = [
                value for value in listed if value.denominator == 1 or (_is_short(value) and floats.contains(value))
            ]
        if numbers.binary64 and not numbers.literal_integers:
            return alt(map(_one_double, listed))
        return alt(_one(value, numbers.literal_integers) for value in listed)
    if numbers == NumberSet(step=Fraction(1)):
        return seq(optional(_MINUS), alt([seq(INTEGER, optional(literal(".0"))), _LARGE_INTEGER]))
    if numbers.step == 1 and not numbers.not_steps:
        integers = functools.partial(_integers, literally=numbers.literal_integers)
        return _signed(with_bounds(numbers, _shortened), integers)
    if numbers.step is not None or numbers.not_steps:
        return _multiples(numbers)
    if numbers.binary64:
        return _signed(floats, _doubles)
    whole = with_bounds(replace(numbers, step=Fraction(1)), _shortened)
    if replace(floats, step=Fraction(1)).integral_bounds() == whole.integral_bounds():
        return _signed(floats, _reals)
    fractions = _signed(floats, functools.partial(_reals, fractions_only=True))
    return alt([_signed(whole, functools.partial(_integers, literally=True)), fractions])


def _one(value: Fraction, literally: bool) -> Node:
    """One number: in plain notation, as an integral float, and as Python writes the float if that has an exponent."""
    texts = [decimal_text(abs(value))]
    # Readers round 1.0 to a 64-bit float, but not 1.
    if value.denominator == 1 and not literally and _is_float(value):
        texts.append(texts[0] + ".0")
    if not literally and abs(value) <= _LARGEST:
        python = repr(float(abs(value)))
        if "e" in python and (_is_float(value) if value.denominator == 1 else Fraction(python) == abs(value)):
            texts.append(python)
    return seq(_sign(value), alt(literal(text) for text in texts))


def _sign(value: Fraction) -> Node:
    return optional(_MINUS) if value == 0 else _MINUS if value < 0 else EMPTY


def _is_short(value: Fraction) -> bool:
    """Whether the float nearest to a decimal is that of no other short one."""
    return len(decimal_text(abs(value)).replace(".", "").lstrip("0")) <= FLOAT_DIGITS


def _one_double(value: Fraction) -> Node:
    """One number, as a 64-bit float; none if the float nearest to an integer is another one."""
    if abs(value) > _LARGEST or (value.denominator == 1 and not _is_float(value)):
        return NEVER
    text = repr(float(abs(value)))
    plain = [literal(text.removesuffix(".0"))] if text.endswith(".0") else []
    return seq(_sign(value), alt([literal(text), *plain]))


def _is_float(value: Fraction) -> bool:
    """Whether a number is a finite 64-bit float exactly."""
    return abs(value) <= _LARGEST and Fraction(float(value)) == value


_Interval = tuple[Fraction, bool, Fraction | None, bool]
"""Magnitudes: lower bound, whether it is excluded, upper bound or None, whether it is excluded."""


def as_read(numbers: NumberSet) -> NumberSet:
    """The interval of the decimals whose nearest float is in the set: of the texts with a fraction or an exponent."""
    return with_bounds(numbers, _highest_read)


def _highest_read(bound: Fraction, is_open: bool) -> Bound:
    # Beside zero, floats are dense. Readers round a bound with a fraction too, and rounding keeps the order.
    if bound == 0 or bound < -_LARGEST or (bound.denominator > 1 and not is_open):
        return bound, is_open
    nearest = float(min(bound, _LARGEST))
    if Fraction(nearest) > bound or (is_open and (nearest == bound or bound.denominator > 1)):
        nearest = math.nextafter(nearest, -math.inf)
    if math.isinf(nearest):
        return Fraction(-(2**1024)), False
    decimal = Fraction(repr(nearest))
    return (max(decimal, bound) if nearest == bound and abs(bound) < _LONGEST_PLAIN else decimal), False


def _shortened(bound: Fraction, is_open: bool) -> Bound:
    """An upper bound with few digits for a float of hundreds of digits; the integers between the two are left out."""
    if abs(bound) < _LONGEST_BOUND or not _is_float(bound):
        return bound, is_open
    decimal = Fraction(repr(float(bound)))
    return decimal if decimal <= bound else Fraction(repr(math.nextafter(float(bound), -math.inf))), is_open


def _signed(numbers: NumberSet, magnitudes: Callable[[_Interval], Node]) -> Node:
    options = (seq(sign, magnitudes(interval)) for sign, interval in _by_sign(numbers))
    return alt(option for option in options if option != NEVER)


def _by_sign(numbers: NumberSet) -> list[tuple[Node, _Interval]]:
    """The magnitudes of the non-negative numbers, and of the non-positive ones."""
    zero = Fraction(0)
    parts: list[tuple[Node, _Interval]] = []
    if numbers.high is None or numbers.high >= 0:
        above = numbers.low is not None and numbers.low >= 0
        low = numbers.low if above and numbers.low is not None else zero
        parts.append((EMPTY, (low, numbers.low_open if above else False, numbers.high, numbers.high_open)))
    if numbers.low is None or numbers.low <= 0:
        below = numbers.high is not None and numbers.high <= 0
        high = -numbers.high if below and numbers.high is not None else zero
        low_ = None if numbers.low is None else -numbers.low
        parts.append((_MINUS, (high, numbers.high_open if below else False, low_, numbers.low_open)))
    return parts


def _integers(interval: _Interval, literally: bool) -> Node:
    low, low_open, high, high_open = interval
    first = math.ceil(low) + (low_open and low.denominator == 1)
    last = None if high is None else math.floor(high) - (high_open and high.denominator == 1)
    plain = integer_range(first, last)
    if literally or plain == NEVER:
        return plain
    largest = 10**FLOAT_DIGITS - 1
    as_float = integer_range(first, largest if last is None else min(last, largest))
    options = [seq(plain, optional(literal(".0")))] if as_float == plain else [plain, seq(as_float, literal(".0"))]
    if last is None and low < _LARGEST_PLAIN:
        options.append(_LARGE_INTEGER)
    return alt(options)


def _reals(interval: _Interval, fractions_only: bool = False) -> Node:
    low, low_open, high, high_open = interval
    options = [plain_range(low, low_open, high, high_open, fractions_only), _large(low, high)]
    if _holds_small(interval):
        options.append(_small(low_open))
    return alt(option for option in options if option != NEVER)


def _doubles(interval: _Interval) -> Node:
    low, low_open, high, high_open = interval
    above = high is None or high >= _LARGEST_PLAIN
    options = [plain_range(low, low_open, _LARGEST_PLAIN if above else high, above or high_open), _large(low, high)]
    if high is not None and high < _LONGEST_PLAIN:
        # Between close bounds also integral ones, like 20000000000000000.0.
        options.append(seq(integer_range(math.ceil(max(low, _LARGEST_PLAIN)), math.floor(high)), literal(".0")))
    if _holds_small(interval):
        options.append(_small(low_open))
    return alt(option for option in options if option != NEVER)


def _large(low: Fraction, high: Fraction | None) -> Node:
    """Magnitudes from 1e16 on, between closed bounds, in scientific notation."""
    low = max(low, _LARGEST_PLAIN)
    high = _LARGEST_TEXT if high is None else min(high, _LARGEST_TEXT)
    if low > high:
        return NEVER
    first, last = (len(str(math.floor(bound))) - 1 for bound in (low, high))
    options: list[Node] = []
    if low > 10**first and first < last:
        options.append(seq(plain_range(low / 10**first, False, Fraction(10), True), _PLUS, literal(str(first))))
        first += 1
    options.append(seq(_MANTISSA, _PLUS, integer_range(first, last - 1)))
    lowest = low / 10**last if first == last and low > 10**last else Fraction(1)
    options.append(seq(plain_range(lowest, False, high / 10**last, False), _PLUS, literal(str(last))))
    return alt(option for option in options if option != NEVER)


def _small(without_zero: bool) -> Node:
    """Magnitudes below 1e-4. Exponents from which a reader may round to zero are left out if zero is excluded."""
    return seq(_SCIENTIFIC, _MINUS, _ABOVE_1E_307 if without_zero else _BELOW_1E_4)


def _holds_small(interval: _Interval) -> bool:
    low, _, high, _ = interval
    return low == 0 and (high is None or high >= _SMALLEST_PLAIN)


def _multiples(numbers: NumberSet) -> Node:
    numbers = with_bounds(numbers, _shortened)
    if numbers.step is not None and numbers.step.denominator == 1 and not numbers.not_steps:
        plain = _expression(numbers, repeat(DIGIT, 1, FLOAT_DIGITS if numbers.binary64 else None))
        floats = NEVER if numbers.literal_integers else _short_floats(numbers)
        return plain if floats == NEVER else alt([plain, floats])
    if numbers.step is None and all(step.denominator == 1 for step in numbers.not_steps):
        return _no_multiples(numbers)
    after = FLOAT_DIGITS // 2 if numbers.step is None else len(decimal_text(numbers.step % 1).partition(".")[2])
    whole = repeat(DIGIT, 1, FLOAT_DIGITS if numbers.binary64 else None)
    if after == 0:
        return _expression(numbers, whole)
    fraction = seq(repeat(DIGIT, 1, FLOAT_DIGITS - after), POINT, repeat(DIGIT, 1, after))
    if all(bound is None or _is_short(bound) for bound in (numbers.low, numbers.high)):
        plain = _expression(numbers, alt([whole, fraction]))
    else:
        plain = alt([_expression(numbers, whole), _expression(as_read(numbers), fraction)])
    if numbers.step is not None or min(numbers.not_steps) < _SMALLEST_PLAIN:
        return plain
    return alt([plain, *_small_ones(numbers)])


def _no_multiples(numbers: NumberSet) -> Node:
    """Numbers that are no multiples of some integers: other integers, and all that are no integers."""
    whole = _expression(numbers, repeat(DIGIT, 1, FLOAT_DIGITS if numbers.binary64 else None))
    floats = _short_floats(numbers)
    if floats == NEVER:
        with_zeros = seq(repeat(DIGIT, 1, FLOAT_DIGITS // 2), POINT, ZERO, repeat(ZERO, 0, None))
        with contextlib.suppress(InexpressibleNumbersError):
            floats = _expression(numbers, with_zeros)
    options = [whole, floats, *_small_ones(numbers)]
    between = between_integers()
    for sign, interval in _by_sign(as_read(numbers)):
        low, _, high, _ = interval
        unlimited = low == 0 and (high is None or high >= 10**FLOAT_DIGITS)
        options.append(seq(sign, between if unlimited else _in_all([plain_range(*interval), between])))
    return alt(option for option in options if option != NEVER)


def _small_ones(numbers: NumberSet) -> list[Node]:
    """Numbers below every excluded step are multiples of none."""
    return [seq(sign, _small(interval[1])) for sign, interval in _by_sign(numbers) if _holds_small(interval)]


def _expression(numbers: NumberSet, magnitudes: Node) -> Node:
    """The plain decimals of a set with conditions on divisibility, with magnitudes written as in ``magnitudes``."""
    interval = NumberSet(numbers.low, numbers.low_open, numbers.high, numbers.high_open)
    trees = [plain_text(interval), seq(optional(_MINUS), magnitudes)]
    if numbers.literal_integers:
        trees.append(seq(optional(_MINUS), INTEGER))
    return _in_all(trees, numbers.step, numbers.not_steps)


def _in_all(trees: list[Node], step: Fraction | None = None, not_steps: frozenset[Fraction] = frozenset()) -> Node:
    try:
        parts = [dfa.Part(dfa.build(tree)) for tree in trees]
        if step is not None:
            parts.append(dfa.Part(divisible(step)))
        parts.extend(dfa.Part(divisible(one), inside=False) for one in sorted(not_steps))
        return to_tree(dfa.conjunction(parts))
    except dfa.TooComplexError as error:
        raise InexpressibleNumbersError(f"multiples have too many cases within these bounds: {error}") from None


def _short_floats(numbers: NumberSet) -> Node:
    """Integers written like 10.0, if the last digits decide and all numbers of a sign are in bounds."""
    unbounded = NumberSet(step=numbers.step or Fraction(1), not_steps=numbers.not_steps)
    steps = [unbounded.step or 1, *numbers.not_steps]
    width = next((width for width in range(1, 4) if all(10**width % step == 0 for step in steps)), 0)
    if width == 0:
        return NEVER
    found = [value for value in range(10**width) if unbounded.contains(Fraction(value))]
    endings = alt(literal(str(ending).rjust(width, "0")) for ending in found)
    short = alt(literal(str(value)) for value in found if value)
    long = seq(NONZERO, repeat(DIGIT, 0, FLOAT_DIGITS - width - 1), endings)
    zero = ZERO if 0 in found else NEVER
    signs = [
        sign
        for sign, (low, low_open, high, _) in _by_sign(numbers)
        if low == 0 and not low_open and (high is None or high >= 10**FLOAT_DIGITS)
    ]
    return seq(alt(signs), alt(one for one in (zero, short, long) if one != NEVER), literal(".0")) if signs else NEVER


def plain_text(numbers: NumberSet) -> Node:
    """The texts of all numbers of an interval, without exponents, as a syntax tree."""
    parts = [seq(sign, plain_range(*interval)) for sign, interval in _by_sign(numbers)]
    return alt(part for part in parts if part != NEVER)
