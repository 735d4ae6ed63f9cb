"""Decimals that are multiples of a number, as an automaton over their digits whose states are remainders."""

from __future__ import annotations

from fractions import Fraction

from draftline.structured.json_schema.numbers import NumberSet
from draftline.structured.regular import dfa

MAX_MODULUS = 1_000
"""Bounds the number of remainders: that of the divisor, scaled to an integer."""


class InexpressibleNumbersError(ValueError):
    """The set has no regular expression within the budgets; the message says why."""


def decimal_text(value: Fraction) -> str:
    """A non-negative number with a finite decimal expansion, in plain notation."""
    digits, denominator = 0, value.denominator
    while denominator > 1:
        value *= 10
        denominator = value.denominator
        digits += 1
    text = str(value.numerator).rjust(digits + 1, "0")
    return f"{text[:-digits]}.{text[-digits:]}" if digits else text


def is_native(numbers: NumberSet) -> bool:
    """Whether llguidance supports the set natively: integers that are multiples of one number, in plain notation."""
    step = numbers.step
    if any(bound is not None and abs(bound) >= 2**53 for bound in (numbers.low, numbers.high)):
        return False
    return step is not None and step.denominator == 1 and step <= MAX_MODULUS and not numbers.not_steps


def divisible(step: Fraction) -> dfa.Dfa:
    """The automaton of plain decimals that are integral multiples of ``step``, which has a finite decimal expansion.

    Raises:
        InexpressibleNumbersError: it would need too many remainders.
    """
    scale = 0
    while (step * 10**scale).denominator != 1:
        scale += 1
    modulus = int(step * 10**scale)
    if modulus > MAX_MODULUS or modulus * (scale + 1) > dfa.MAX_DFA_STATES:
        raise InexpressibleNumbersError(f"multiples of {decimal_text(step)} need more than {MAX_MODULUS} remainders")
    # Letters: other, "-", ".", "0" to "9".
    starts = (0, ord("-"), ord("."), ord("/"), *range(ord("0"), ord("9") + 2))
    letters = (0, 1, 2, 0, *range(3, 13), 0)
    steps: list[tuple[int, ...]] = []
    accepts: list[bool] = []
    # States: the start; dead; after "-"; the integer part, by remainder; decimals, by count and remainder; zeros after them.
    dead, signed, integer = 1, 2, 3
    decimals = integer + modulus

    def whole(remainder: int) -> int:
        return integer + remainder

    def decimal(count: int, remainder: int) -> int:
        """After the point and ``count`` of ``scale`` decimals. After all of them only zeros may follow."""
        return decimals + count * modulus + remainder

    def of_digits(digits: list[int]) -> tuple[int, ...]:
        return (dead, dead, dead, *digits)

    first = [whole(digit % modulus) for digit in range(10)]
    steps.append((dead, signed, dead, *first))
    steps.append((dead,) * 13)
    steps.append(of_digits(first))
    accepts.extend([False, False, False])
    for remainder in range(modulus):
        digits = [whole((remainder * 10 + digit) % modulus) for digit in range(10)]
        steps.append((dead, dead, decimal(0, remainder), *digits))
        accepts.append(remainder * 10**scale % modulus == 0)
    for count in range(scale + 1):
        for remainder in range(modulus):
            if count < scale:
                digits = [decimal(count + 1, (remainder * 10 + digit) % modulus) for digit in range(10)]
            else:
                digits = [decimal(scale, remainder), *[dead] * 9]
            steps.append(of_digits(digits))
            accepts.append(remainder * 10 ** (scale - count) % modulus == 0)
    return dfa.minimal(dfa.Dfa(starts, letters, tuple(steps), tuple(accepts)))
