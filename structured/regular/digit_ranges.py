"""Ranges of non-negative decimals in plain notation, as syntax trees over their digits."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from draftline.structured.regular import charset
from draftline.structured.regular.syntax import EMPTY, NEVER, Chars, Node, alt, literal, optional, repeat, seq

_MAX_ZEROS = 20


def decimal_text(value: Fraction) -> str:
    """A non-negative number with a finite decimal expansion, in plain notation."""
    digits, denominator = 0, value.denominator
    while denominator > 1:
        value *= 10
        denominator = value.denominator
        digits += 1
    text = str(value.numerator).rjust(digits + 1, "0")
    return f"{text[:-digits]}.{text[-digits:]}" if digits else text


def digit_class(low: int, high: int) -> Chars:
    """One digit from ``low`` to ``high``."""
    return Chars(charset.charset([(ord("0") + low, ord("0") + high)]))


DIGIT: Final = digit_class(0, 9)
DIGITS: Final = repeat(DIGIT, 0, None)
NONZERO: Final = digit_class(1, 9)
ZERO: Final = literal("0")
_ZEROS: Final = repeat(ZERO, 0, None)
POINT: Final = literal(".")
INTEGER: Final = alt([ZERO, seq(NONZERO, DIGITS)])
FRACTION: Final = seq(POINT, DIGIT, DIGITS)


def between_integers() -> Node:
    """Magnitudes that no reader rounds to an integer.

    With n digits before the point, the first 16 - n behind it are neither all 0 nor all 9. A 64-bit float of such a number
    is less than 10^(n - 16) away from it.
    """

    def fraction(digits: int) -> Node:
        nines = seq(repeat(literal("9"), 1, digits - 1), optional(seq(digit_class(0, 8), DIGITS)))
        above = [seq(repeat(ZERO, 1, digits - 1), NONZERO, DIGITS), nines] if digits > 1 else []
        return seq(POINT, alt([seq(digit_class(1, 8), DIGITS), *above]))

    wholes = [NONZERO, *(seq(NONZERO, repeat(DIGIT, digits, digits)) for digits in range(1, 15))]
    return alt([seq(ZERO, fraction(16)), *(seq(whole, fraction(15 - index)) for index, whole in enumerate(wholes))])


def integer_range(low: int, high: int | None) -> Node:
    """Non-negative integers without leading zeros."""
    if high is not None and low > high:
        return NEVER
    if high is None:
        if low == 0:
            return INTEGER
        width = len(str(low))
        longer = seq(NONZERO, repeat(DIGIT, width, width), DIGITS)
        return alt([_same_width(str(low), "9" * width), longer])
    width, widest = len(str(low)), len(str(high))
    if width == widest:
        return _same_width(str(low), str(high))
    options = [_same_width(str(low), "9" * width)]
    if width + 1 < widest:
        options.append(seq(NONZERO, repeat(DIGIT, width, widest - 2)))
    return alt([*options, _same_width(str(10 ** (widest - 1)), str(high))])


def _same_width(low: str, high: str) -> Node:
    """Digit strings from ``low`` to ``high``, of one length. The tree is flat: bounds may have hundreds of digits."""
    width = len(low)
    split = next((index for index in range(width) if low[index] != high[index]), width)
    if split == width:
        return literal(low)

    def branch(prefix: str, first: int, last: int) -> Node:
        if first > last:
            return NEVER
        rest = width - len(prefix) - 1
        return seq(literal(prefix), digit_class(first, last), repeat(DIGIT, rest, rest))

    if low[split:] == "0" * (width - split) and high[split:] == "9" * (width - split):
        return seq(literal(low[:split]), repeat(DIGIT, width - split, width - split))
    # Whole decades at the first different digit, then the branches towards each end.
    first, last = int(low[split]), int(high[split])
    at_low = low[split + 1 :] == "0" * (width - split - 1)
    at_high = high[split + 1 :] == "9" * (width - split - 1)
    options = [branch(low[:split], first + (not at_low), last - (not at_high))]
    if not at_low:
        last_nonzero = len(low.rstrip("0"))
        options.extend(branch(low[:index], int(low[index]) + 1, 9) for index in range(split + 1, last_nonzero - 1))
        options.append(branch(low[: last_nonzero - 1], int(low[last_nonzero - 1]), 9))
    if not at_high:
        last_other = len(high.rstrip("9"))
        options.extend(branch(high[:index], 0, int(high[index]) - 1) for index in range(split + 1, last_other - 1))
        options.append(branch(high[: last_other - 1], 0, int(high[last_other - 1])))
    return alt(option for option in options if option != NEVER)


def plain_range(
    low: Fraction, low_open: bool, high: Fraction | None, high_open: bool, fractions_only: bool = False
) -> Node:
    """Non-negative decimals without exponent; only those written with a point if ``fractions_only``."""
    if high is not None and low > high:
        return NEVER
    fraction = FRACTION if fractions_only else optional(FRACTION)
    low_whole, low_digits = _split(low)
    from_low = seq(literal(str(low_whole)), _fraction_from(low_digits, low_open, fractions_only))
    if high is None:
        return alt([from_low, seq(integer_range(low_whole + 1, None), fraction)])
    high_whole, high_digits = _split(high)
    if low_whole == high_whole:
        between = _fraction_between(low_digits, low_open, high_digits, high_open, fractions_only)
        return seq(literal(str(low_whole)), between)
    return alt(
        option
        for option in (
            from_low,
            seq(integer_range(low_whole + 1, high_whole - 1), fraction),
            seq(literal(str(high_whole)), _fraction_to(high_digits, high_open, fractions_only)),
        )
        if option != NEVER
    )


def _split(value: Fraction) -> tuple[int, str]:
    """The integer part, and the decimals without trailing zeros."""
    text = decimal_text(value)
    whole, _, digits = text.partition(".")
    return int(whole), digits


def _with_point(some: Node, or_none: bool) -> Node:
    """A point and the digits ``some``; also nothing at all if ``or_none``."""
    return alt(([EMPTY] if or_none else []) + ([seq(POINT, some)] if some != NEVER else []))


def _fraction_from(digits: str, strict: bool, some: bool) -> Node:
    return _with_point(_digits_from(digits, strict), or_none=not digits and not strict and not some)


def _fraction_to(digits: str, strict: bool, some: bool) -> Node:
    if not digits and strict:
        return NEVER
    return _with_point(_digits_to(digits, strict, some=True), or_none=not some)


def _fraction_between(low: str, low_open: bool, high: str, high_open: bool, some: bool) -> Node:
    none = not low and not low_open and (bool(high) or not high_open) and not some
    return _with_point(_digits_between(low, low_open, high, high_open), or_none=none)


def _digits_from(digits: str, strict: bool) -> Node:
    """One or more decimals that are at least ``digits`` (greater, if strict)."""
    options = [
        seq(literal(digits[:index]), digit_class(int(digits[index]) + 1, 9), DIGITS)
        for index in range(len(digits))
        if digits[index] != "9"
    ]
    if strict:
        # Beyond some zeros in a row, a reader's float is the excluded bound.
        zeros = repeat(ZERO, 0, _MAX_ZEROS)
        options.append(seq(literal(digits), zeros, NONZERO, DIGITS))
    else:
        options.append(seq(literal(digits), DIGITS) if digits else seq(DIGIT, DIGITS))
    return alt(options)


def _digits_to(digits: str, strict: bool, some: bool) -> Node:
    """Decimals that are at most ``digits`` (less, if strict), which has no trailing zero; at least one if ``some``."""
    options = [
        seq(literal(digits[:index]), digit_class(0, int(digits[index]) - 1), DIGITS)
        for index in range(len(digits))
        if digits[index] != "0"
    ]
    # A shorter text stands for trailing zeros.
    options.extend(literal(digits[:index]) for index in range(int(some), len(digits)))
    if not strict:
        zeros = seq(ZERO, _ZEROS) if some and not digits else _ZEROS
        options.append(seq(literal(digits), zeros))
    return alt(options)


def _digits_between(low: str, low_open: bool, high: str, high_open: bool) -> Node:
    """One or more decimals between two bounds."""
    prefix = ""
    while high and (low or low_open) and (low[:1] or "0") == high[0]:
        prefix += high[0]
        low, high = low[1:], high[1:]
    if not low and not low_open:
        return seq(literal(prefix), _digits_to(high, high_open, some=not prefix))
    if not high:
        return NEVER
    first, last = int(low[:1] or "0"), int(high[0])
    if first > last:
        return NEVER
    rest = low[1:]
    options = [seq(literal(str(first)), _digits_from(rest, low_open) if rest or low_open else DIGITS)]
    if first + 1 <= last - 1:
        options.append(seq(digit_class(first + 1, last - 1), DIGITS))
    to_high = _digits_to(high[1:], high_open, some=False)
    if to_high != NEVER:
        options.append(seq(literal(high[0]), to_high))
    return seq(literal(prefix), alt(options))
