"""Decimals that are multiples of a number, as an automaton over their digits whose states are remainders."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from draftline.structured.json_schema.shapes.numbers import NumberSet, excluding_read, meet
from draftline.structured.regular import dfa
from draftline.structured.regular.digit_ranges import decimal_text

MAX_MODULUS = 1_000
"""Bounds the number of remainders: that of the divisor, scaled to an integer."""


class InexpressibleNumbersError(ValueError):
    """The set has no regular expression within the budgets; the message says why."""


def native_schemas(numbers: NumberSet) -> list[str]:
    """JSON Schemas that llguidance enforces natively and that unite to the set, in plain notation; none if it has no such form.

    Fractions have at most 15 digits, so that readers who round to 64-bit floats find them in the set.
    """
    numbers = excluding_read(numbers)
    step = numbers.step
    if (
        step is None
        or numbers.not_steps
        or any(bound is not None and abs(bound) >= 2**53 for bound in (numbers.low, numbers.high))
    ):
        return []
    scale = len(decimal_text(step).partition(".")[2])
    if int(step * 10**scale) > MAX_MODULUS or step.numerator > MAX_MODULUS:
        return []
    kinds = [("integer", replace(numbers, step=Fraction(step.numerator)))]
    if not numbers.literal_integers:
        limit = Fraction(10**15, 10**scale)
        small = meet(numbers, NumberSet(low=-limit, high=limit))
        # The texts of each schema have one number of decimals.
        for decimals in range(1, scale + 1):
            kinds.append(("number", meet(small, NumberSet(step=Fraction(1, 10**decimals)))))
    if not all(_is_read(one.step or step, scale) for _, one in kinds):
        return []
    return [_native(kind, one) for kind, one in kinds]


def _is_read(step: Fraction, scale: int) -> bool:
    """Whether llguidance reads a step exactly: it multiplies a 64-bit float by ten until that is an integer."""
    value = float(step)
    for _ in range(scale):
        if value.is_integer():
            break
        value *= 10
    return value.is_integer()


def _native(kind: str, numbers: NumberSet) -> str:
    step = numbers.step
    assert step is not None
    bounds = zip(("minimum", "maximum"), numbers.integral_bounds(), strict=True)
    named = {keyword: _signed_text(bound * step) for keyword, bound in bounds if bound is not None}
    members = {"type": f'"{kind}"', "multipleOf": decimal_text(step), **named}
    return "{" + ", ".join(f'"{name}": {text}' for name, text in members.items()) + "}"


def _signed_text(value: Fraction) -> str:
    return f"{'-' if value < 0 else ''}{decimal_text(abs(value))}"


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
