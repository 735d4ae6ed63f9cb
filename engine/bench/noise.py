"""Noise: how far repeated measurements spread, and whether two of them differ by more than that.

The rule needs no assumption on the distribution: a difference counts where every round shows it, or, without pairs,
where the slowest of one side beats the fastest of the other. Fewer than three rounds show nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["higher", "lower", "within noise", "one run"]

MIN_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of repeated values, with the lowest and the highest."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """The spread of one or more values."""
        return Spread(statistics.median(values), min(values), max(values), len(values))

    @property
    def relative(self) -> float:
        """Half the distance from the lowest to the highest, over the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two measurements.

    Attributes:
        median: the ratio.
        low: the lowest that the rounds allow.
        high: the highest.
        verdict: whether it differs from 1 by more than noise.
    """

    median: float
    low: float
    high: float
    verdict: Verdict


def paired_ratio(values: Sequence[float], base: Sequence[float]) -> Ratio:
    """The ratio of values to a base that was measured in the same rounds, in turns."""
    ratios = [value / other for value, other in zip(values, base, strict=True)]
    spread = Spread.of(ratios)
    return Ratio(spread.median, spread.low, spread.high, _verdict(spread.low, spread.high, spread.count))


def ratio(values: Sequence[float], base: Sequence[float]) -> Ratio:
    """The ratio of values to a base that was measured at another time."""
    ours, theirs = Spread.of(values), Spread.of(base)
    low, high = ours.low / theirs.high, ours.high / theirs.low
    return Ratio(ours.median / theirs.median, low, high, _verdict(low, high, min(ours.count, theirs.count)))


def _verdict(low: float, high: float, count: int) -> Verdict:
    if count < 2:
        return "one run"
    if count < MIN_ROUNDS or low <= 1 <= high:
        return "within noise"
    return "higher" if low > 1 else "lower"
