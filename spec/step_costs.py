"""``StepCosts``: the measured duration of a step, by rows and drafts, and of a drafter's catching up. Arithmetic only."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import override


class CostTable:
    """Steps that are padded to the row with the most drafts, as CUDA graphs are: fewer drafts of another row save nothing.

    Row counts are rounded up to the next measured one.
    """

    def __init__(self, seconds: Mapping[tuple[int, int], float]) -> None:
        """``seconds`` of a step by (rows, drafts a row). Every number of rows has the same drafts, with 0 among them.

        Raises:
            ValueError: a combination is missing.
        """
        self._rows = sorted({rows for rows, _ in seconds})
        self.draft_lens = tuple(sorted({drafts for _, drafts in seconds}))
        missing = [(r, k) for r in self._rows for k in self.draft_lens if (r, k) not in seconds]
        if missing or 0 not in self.draft_lens:
            raise ValueError(f"costs are missing for (rows, drafts) {missing[0] if missing else (self._rows[0], 0)}")
        self._seconds = dict(seconds)

    def seconds(self, rows: int, drafts: int) -> float:
        """Seconds of a step with this many rows, each with this many drafts."""
        index = min(bisect_left(self._rows, rows), len(self._rows) - 1)
        return self._seconds[self._rows[index], drafts]

    def of_drafts(self, rows: int, drafts: int, longest: int) -> float:
        """Seconds of a step of this many rows with ``drafts`` drafts together, and ``longest`` for the row with the most."""
        return self.seconds(rows, self.draft_lens[bisect_left(self.draft_lens, longest)])

    def of_another(self, rows: int, longest: int) -> float:
        """Seconds of one draft more, in a step in which rows have up to ``longest`` drafts."""
        return 0.0


class RaggedCostTable(CostTable):
    """Steps that compute the tokens that they have, and no padding."""

    @override
    def of_drafts(self, rows: int, drafts: int, longest: int) -> float:
        # Verification depends on the drafts of all rows, and a drafter's passes on the row with the most.
        mean = (drafts / rows + longest) / 2
        right = min(max(1, bisect_left(self.draft_lens, mean)), len(self.draft_lens) - 1)
        low, high = self.draft_lens[right - 1], self.draft_lens[right]
        share = (mean - low) / (high - low)
        return (1 - share) * self.seconds(rows, low) + share * self.seconds(rows, high)

    @override
    def of_another(self, rows: int, longest: int) -> float:
        shorter = max(length for length in self.draft_lens if length < longest)
        return max(0.0, self.seconds(rows, longest) - self.seconds(rows, shorter)) / (rows * (longest - shorter))


@dataclass(frozen=True, slots=True)
class CatchUpCost:
    """Seconds in which a drafter catches up with known tokens: ``base + a_token * tokens``, and nothing for no token."""

    base: float = 0.0
    a_token: float = 0.0

    def seconds(self, tokens: int) -> float:
        """Seconds for this many tokens."""
        return self.base + self.a_token * tokens if tokens else 0.0

    @classmethod
    def through(cls, few: tuple[int, float], many: tuple[int, float]) -> CatchUpCost:
        """The cost from two measurements of tokens and seconds; the second has more tokens."""
        (tokens, seconds), (more_tokens, more_seconds) = few, many
        a_token = max(0.0, more_seconds - seconds) / max(1, more_tokens - tokens)
        return cls(max(0.0, seconds - a_token * tokens), a_token)


NO_CATCH_UP = CatchUpCost()


_JITTER = 0.1**2
"""The variance of a step's duration, in logarithms like all of these."""

_ALL_AT_FIRST, _DRAFTING_AT_FIRST = 0.1**2, 0.3**2
"""The variances of the two factors before any step: the measurement was minutes ago, but had few rounds of each kind of step."""

_CHANGES, _HARDLY_CHANGES = 0.01**2, 0.001**2
"""What a step adds to the variance of the factor of all steps, and to that of steps with drafts."""

_MAX_OFF = math.log(1.5)
"""A step that takes longer than expected counts as if it took this much longer: something else may have disturbed it."""

_MIN_RATIO = 1e-3
"""A coarse clock may see no time at all pass."""


class Pace:
    """By which factors steps take longer at present than they were measured.

    One factor is that of all steps: other programs run, or histories are longer than the measured ones. It changes all the time.
    Steps with drafts have another one on top of it, an error of the measurement, which hardly changes. A step with drafts shows
    their product. A Kalman filter (Kalman 1960, https://doi.org/10.1115/1.3662552) divides it by what is known less: at first the
    second factor, later the first. Otherwise longer histories would look like expensive drafts.
    """

    def __init__(self) -> None:
        """Steps take as long as measured."""
        self._all = self._drafting = 0.0  # logarithms
        self._all_var, self._drafting_var = _ALL_AT_FIRST, _DRAFTING_AT_FIRST
        self._covariance = 0.0

    @property
    def with_drafts(self) -> float:
        """The factor of steps with drafts alone."""
        return math.exp(self._drafting)

    def observe(self, ratio: float, *, drafting: bool) -> None:
        """Learn from a step that took ``ratio`` times as long as measured, at least 0."""
        self._all_var += _CHANGES
        self._drafting_var += _HARDLY_CHANGES
        seen = float(drafting)  # of the second factor
        off = math.log(max(ratio, _MIN_RATIO)) - self._all - seen * self._drafting
        # How far the step's duration varies with each of the factors.
        of_all = self._all_var + seen * self._covariance
        of_drafting = self._covariance + seen * self._drafting_var
        variance = of_all + seen * of_drafting + _JITTER
        off = min(max(off, -_MAX_OFF), _MAX_OFF)
        self._all += of_all / variance * off
        self._drafting += of_drafting / variance * off
        self._all_var -= of_all**2 / variance
        self._covariance -= of_all * of_drafting / variance
        self._drafting_var -= of_drafting**2 / variance
