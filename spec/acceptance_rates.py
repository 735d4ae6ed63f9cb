"""``AcceptanceRates``: how often drafts are right at each position of a round, in all rows of a kind. Arithmetic only.

Greedy tokens are drafted right more often than drawn ones. If all rows had the same rates, a change from requests of
one kind to those of the other would have to be learned anew each time, and a row among others of the other kind would
begin with a wrong expectation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

GREEDY, DRAWN = 0, 1
"""The kinds of rows, by the way in which their tokens are chosen."""

KINDS = 2

ROW_MEMORY = 0.95
"""Decay of a row's drafts with each verified one."""

_LONG_MEMORY = 0.997
"""Decay of the rates with each draft. It is slower than a row's: accepted drafts come in bursts, far apart."""

_PRIOR_RATE, _PRIOR_WEIGHT = 0.6, 4
"""The acceptance rate before any draft has been verified, and the number of drafts that it counts for."""

_OPTIMISM = 0.5
"""By how many standard errors rates are taken for better than their means."""


@dataclass(slots=True)
class _Mean:
    """A moving average.

    Attributes:
        rate: the average.
        weight: the number of values that it stands for.
    """

    rate: float
    weight: float

    def update(self, ones: int, count: int) -> None:
        """Learn ``count`` values, of which so many are 1 and the others 0.

        It is the mean of all, until an exponential average with `_LONG_MEMORY` forgets more slowly.
        """
        if not count:
            return
        memory = min(_LONG_MEMORY**count, self.weight / (self.weight + count))
        self.weight += count
        # In this form, rounding does not take it beyond 1.
        self.rate += (1 - memory) * (ones / count - self.rate)


class AcceptanceRates:
    """The rates of one kind of rows.

    Attributes:
        expected: [K], how often a draft at each position is expected to be right, if those before it are. They stand
            until `expect`.
        of_first: [K + 1], how many of a row's first n drafts are expected to be right, where older ones count less.
    """

    def __init__(self, positions: int, prior: float | None) -> None:
        """Of K ``positions``, of which nothing is known. They begin with the rate ``prior``; None for a usual one."""
        self._overall = _Mean(_PRIOR_RATE if prior is None else prior, _PRIOR_WEIGHT)
        self._at = [_Mean(self._overall.rate, 0.0) for _ in range(positions)]
        self.expect()

    @property
    def overall(self) -> float:
        """The rate of all positions together."""
        return self._overall.rate

    def observe(self, telling: Sequence[int], right: Sequence[int]) -> None:
        """Learn from the drafts of a step.

        Args:
            telling: [K + 1], how many rows have so many drafts that tell something.
            right: [K + 1], how many rows have so many right ones among these.
        """
        reached, kept = _reaching(telling), _reaching(right)
        self._overall.update(sum(kept), sum(reached))
        for at, rows, right_rows in zip(self._at, reached, kept, strict=True):
            at.update(right_rows, rows)

    def expect(self) -> None:
        """Expect drafts to be right as often as all were."""
        self.expected = [self._rate(at) for at in self._at]
        self.of_first = [0.0]
        for rate in self.expected:
            self.of_first.append(ROW_MEMORY * self.of_first[-1] + rate)

    def _rate(self, at: _Mean) -> float:
        """The rate at a position. One that was hardly ever reached has the rate of all positions."""
        share = at.weight / (at.weight + _PRIOR_WEIGHT)
        mean = share * at.rate + (1 - share) * self._overall.rate
        # In doubt, it is better than it seems: drafting ends when that is known, since it may begin again late.
        return mean + math.sqrt(mean * (1 - mean) / (at.weight + _PRIOR_WEIGHT)) * _OPTIMISM


def _reaching(counts: Sequence[int]) -> list[int]:
    """How many rows reach each position, if ``counts[n]`` rows have n."""
    return [*accumulate(reversed(counts[1:]))][::-1]
