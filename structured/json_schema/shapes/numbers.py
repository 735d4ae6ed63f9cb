"""Sets of JSON numbers: an interval, with conditions on divisibility.

Values are exact: decimals of JSON are Fractions, never floats.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class NumberSet:
    """The numbers that meet all conditions; None is no condition.

    Attributes:
        low: the lower bound.
        low_open: whether ``low`` itself is excluded.
        high: the upper bound.
        high_open: whether ``high`` itself is excluded.
        step: every number is an integral multiple of it (1: integers).
        not_steps: no number is an integral multiple of any of these.
        literal_integers: whether a number must be *written* without fraction and exponent (draft 4's
            integers, and plain ones).
        binary64: whether a number must be written as a finite 64-bit float, such that its reader finds it in the set.
    """

    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False
    step: Fraction | None = None
    not_steps: frozenset[Fraction] = frozenset()
    literal_integers: bool = False
    binary64: bool = False

    def contains(self, value: Fraction) -> bool:
        """Whether the number is in the set."""
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.high_open and value == self.high)):
            return False
        if self.step is not None and value % self.step:
            return False
        return all(value % step for step in self.not_steps)

    def integral_bounds(self) -> tuple[int | None, int | None]:
        """For a set with a step: the smallest and the largest number, as multiples of the step."""
        assert self.step is not None
        low = high = None
        if self.low is not None:
            low = math.ceil(self.low / self.step)
            low += self.low_open and low * self.step == self.low
        if self.high is not None:
            high = math.floor(self.high / self.step)
            high -= self.high_open and high * self.step == self.high
        return low, high

    def is_point(self) -> bool:
        """Whether the bounds leave at most one number."""
        return self.low is not None and self.low == self.high

    def is_empty(self) -> bool:
        """Whether no number is in the set. Exact, except for many excluded multiples within a wide interval."""
        if self.low is not None and self.high is not None:
            if self.low > self.high or (self.low == self.high and (self.low_open or self.high_open)):
                return True
            if self.low == self.high:
                return not self.contains(self.low)
        if self.step is None:
            return False
        if any((self.step / step).denominator == 1 for step in self.not_steps):
            return True
        low, high = self.integral_bounds()
        if low is None or high is None:
            return False
        if high - low < 1000:
            return not any(self.contains(multiple * self.step) for multiple in range(low, high + 1))
        return low > high

    def values(self, max_values: int) -> list[Fraction] | None:
        """All numbers, ascending; None if there are more than ``max_values``."""
        if self.is_point():
            assert self.low is not None
            return [self.low] if not self.is_empty() else []
        if self.step is None:
            return None
        low, high = self.integral_bounds()
        if low is None or high is None or high - low >= max_values:
            return None
        return [value for multiple in range(low, high + 1) if self.contains(value := multiple * self.step)]


def read_number(value: int | Decimal) -> Fraction:
    """A number of a schema, as its readers find it: with a fraction or an exponent, it is a 64-bit float from 2^53 on."""
    exact = Fraction(value)
    if isinstance(value, int) or abs(exact) < 2**53:
        return exact
    nearest = float(value)
    return exact if math.isinf(nearest) else Fraction(nearest)


Bound = tuple[Fraction | None, bool]
"""A bound, or None, and whether it is excluded."""


def with_bounds(numbers: NumberSet, change: Callable[[Fraction, bool], Bound]) -> NumberSet:
    """The set with both bounds changed by ``change``, which takes an upper bound."""
    high, low = numbers.high, numbers.low
    high, high_open = (None, False) if high is None else change(high, numbers.high_open)
    low, low_open = (None, False) if low is None else change(-low, numbers.low_open)
    low = None if low is None else -low
    return replace(numbers, low=low, low_open=low_open, high=high, high_open=high_open)


def excluding_read(numbers: NumberSet) -> NumberSet:
    """The set whose excluded bounds also exclude the short number that readers find in them."""

    def exclude(bound: Fraction, is_open: bool) -> Bound:
        if not is_open or bound.denominator == 1 or abs(bound) > sys.float_info.max:
            return bound, is_open
        return min(bound, Fraction(repr(float(bound)))), is_open

    return with_bounds(numbers, exclude)


def meet(one: NumberSet, other: NumberSet) -> NumberSet:
    """The intersection of two sets."""
    low, low_open = one.low, one.low_open
    if other.low is not None and (low is None or other.low >= low):
        low_open = other.low_open or (low_open and other.low == low)
        low = other.low
    high, high_open = one.high, one.high_open
    if other.high is not None and (high is None or other.high <= high):
        high_open = other.high_open or (high_open and other.high == high)
        high = other.high
    if one.step is None or other.step is None:
        step = one.step or other.step
    else:
        step = Fraction(
            math.lcm(one.step.numerator * other.step.denominator, other.step.numerator * one.step.denominator),
            one.step.denominator * other.step.denominator,
        )
    literal = one.literal_integers or other.literal_integers
    binary64 = one.binary64 or other.binary64
    return NumberSet(low, low_open, high, high_open, step, one.not_steps | other.not_steps, literal, binary64)


def outside(one: NumberSet) -> Iterator[NumberSet]:
    """Sets whose union is the complement of ``one``, which must not have ``literal_integers``."""
    if one.low is not None:
        yield NumberSet(high=one.low, high_open=not one.low_open)
    if one.high is not None:
        yield NumberSet(low=one.high, low_open=not one.high_open)
    if one.step is not None:
        yield NumberSet(not_steps=frozenset([one.step]))
    for step in one.not_steps:
        yield NumberSet(step=step)
