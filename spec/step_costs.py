"""Durations of steps, by rows and drafts, and of a drafter's catching up. Arithmetic only.

`CostTable` and `CatchUpCost` have what was measured at the start, `Pace` how much longer steps take at present.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from operator import mul

from typing_extensions import override


class CostTable:
    """Steps padded to the row with the most drafts, as CUDA graphs are: fewer drafts of another row save nothing.

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
        """Seconds of a step of so many rows with ``drafts`` drafts together, and ``longest`` for one row at most."""
        return self.seconds(rows, self.draft_lens[bisect_left(self.draft_lens, longest)])

    def of_another(self, rows: int, longest: int) -> float:
        """Seconds of one draft more, in a step in which rows have up to ``longest`` drafts."""
        return 0.0

    def kind(self, rows: int, longest: int) -> int:
        """The kind of steps of so many rows with up to ``longest`` drafts; 0 without drafts.

        Steps of a kind were measured with the same number of drafts, and of rows up to a factor of two.
        """
        if not longest:
            return 0
        return len(self.draft_lens) * (rows - 1).bit_length() + bisect_left(self.draft_lens, longest)

    @property
    def a_token(self) -> float:
        """Seconds of one token more in the largest step, at least 1 µs: what a prompt's token probably takes."""
        rows, drafts = self._rows[-1], self.draft_lens[-1]
        longer = self.seconds(rows, drafts) - self.seconds(rows, 0)
        return max(1e-6, longer / (rows * max(1, drafts)))


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
    def kind(self, rows: int, longest: int) -> int:
        return min(longest, 1)  # how long such a step takes depends on the other rows

    @override
    def of_another(self, rows: int, longest: int) -> float:
        shorter = max(length for length in self.draft_lens if length < longest)
        return max(0.0, self.seconds(rows, longest) - self.seconds(rows, shorter)) / (rows * (longest - shorter))


@dataclass(frozen=True, slots=True)
class CatchUpCost:
    """Seconds in which a drafter catches up with known tokens: ``base + a_token * tokens``, or 0 for none."""

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


_JITTER, _PROMPT_JITTER = 0.1**2, 0.3**2
"""The variance of a step's duration, in logarithms like all of these, and what prompts add to it where the step is all
theirs."""

_AT_FIRST = 0.1**2, 0.2**2, 1.5**2, 0.08**2
"""The variances of the factors before any step: the measurement was minutes ago, had few rounds of each kind of step,
and no prompts. Of kinds by themselves hardly any is wrong by a fifth. If more were expected, a host that is slow for a
moment would look like an error of the kind of steps that then run."""

_CHANGES = 0.025**2, 0.001**2, 0.02**2, 0.001**2
"""What a step adds to these variances. Histories and a host's speed change all steps within tens of them."""

_FACTORS, _OF_KIND = len(_AT_FIRST), len(_AT_FIRST) - 1

_UNKNOWN = 0.0, _AT_FIRST[_OF_KIND]
"""The factor, as a logarithm, and the variance of a kind that no step had yet."""

_MAX_OFF = math.log(1.5)
"""A step that takes longer than expected counts as if it took this much longer: something else may have disturbed
it."""

_ALL_OF_FIRST, _LATER_EVERY = 16, 3
"""Of steps of one kind the first so many teach, and later one in so many: the host has little time."""

_MIN_RATIO = 1e-3
"""A coarse clock may see no time at all pass."""


class Pace:
    """By which factors steps take longer at present than they were measured.

    - One factor is that of all steps: other programs run, or histories are longer than the measured ones. It changes
      all the time.
    - Steps with drafts have another one on top of it, which hardly changes: a host that takes longer for drafts than
      the device.
    - Prompts that a step computes have a third one, since they were not measured. Where requests come and go, hardly a
      step is without them.
    - Each kind of steps with drafts has one of its own: the error of its measurement, or a host that limits steps of
      many rows alone. A kind that was measured too short is tried, and known from then on.

    An extended Kalman filter (Kalman 1960, https://doi.org/10.1115/1.3662552) divides what a step shows between them:
    by what is known less. Otherwise longer histories, or prompts, would look like expensive drafts.
    """

    def __init__(self) -> None:
        """Steps take as long as measured."""
        # Lists: a step has time for a few microseconds of this. The factors are logarithms; the last is that of a kind.
        self._factors = [0.0] * _FACTORS
        self._covariance = [[_AT_FIRST[row] * (row == column) for column in range(_FACTORS)] for row in range(_FACTORS)]
        self._kind = 0  # whose factor that is
        self._others: dict[int, tuple[float, float]] = {}  # those of other kinds that steps had, and their variances
        self._drafting = False  # in the step before
        self._alike = 0  # steps since that, or the kind, changed

    def of_kind(self, kind: int) -> float:
        """The factor of steps of one kind alone, beside that of all steps; 1 for those without drafts."""
        if not kind:
            return 1.0
        own = self._factors[_OF_KIND] if kind == self._kind else self._others.get(kind, _UNKNOWN)[0]
        return math.exp(self._factors[1] + own)

    def observe(self, seconds: float, decodes: float, *, kind: int, prompts: float = 0.0) -> None:
        """Learn from a step.

        Args:
            seconds: the time that it took, at least 0.
            decodes: what its decodes or verifies take as measured, more than 0.
            kind: the kind of the step; 0 without drafts. If the step before had drafts and this one has not, or the
                other way round, it is ignored: a host that is late still works for the step before.
            prompts: what its prompts were expected to take.
        """
        drafting = kind > 0
        if drafting is not self._drafting:
            self._drafting, self._alike = drafting, 0
            return
        if drafting and kind != self._kind:
            self._turn_to(kind)
            self._alike = 0
        self._alike += 1
        if self._alike > _ALL_OF_FIRST and self._alike % _LATER_EVERY:
            return
        of_all, of_drafting, of_prompts, of_kind = [math.exp(factor) for factor in self._factors]
        decodes *= of_all * (of_drafting * of_kind if drafting else 1.0)
        prompts *= of_all * of_prompts
        share = decodes / (decodes + prompts)
        off = math.log(max(seconds / (decodes + prompts), _MIN_RATIO))
        off = min(max(off, -_MAX_OFF), _MAX_OFF)
        for index, change in enumerate(_CHANGES):
            self._covariance[index][index] += change
        # How the logarithm of the step's duration follows each of the factors.
        slopes = [1.0, share * drafting, 1.0 - share, share * drafting]
        covariances = [sum(map(mul, row, slopes)) for row in self._covariance]
        variance = sum(map(mul, slopes, covariances)) + _JITTER + _PROMPT_JITTER * (1.0 - share) ** 2
        gains = [covariance / variance for covariance in covariances]
        self._factors = [factor + gain * off for factor, gain in zip(self._factors, gains, strict=True)]
        self._covariance = [
            [known - gain * learned for known, learned in zip(row, covariances, strict=True)]
            for row, gain in zip(self._covariance, gains, strict=True)
        ]

    def _turn_to(self, kind: int) -> None:
        """Let the last factor be that of another kind."""
        last = _OF_KIND
        self._others[self._kind] = self._factors[last], self._covariance[last][last]
        self._kind, (self._factors[last], variance) = kind, self._others.get(kind, _UNKNOWN)
        for other in range(last):
            self._covariance[last][other] = self._covariance[other][last] = 0.0
        self._covariance[last][last] = variance
