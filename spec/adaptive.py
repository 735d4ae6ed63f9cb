"""``DraftLengths``: chooses the number of drafts of each step, so that speculation is faster than decoding, or off.

A step that verifies K drafts a row takes longer than a step that verifies none, but decides more tokens if drafts are
accepted. The duration of a step is measured once, by rows and drafts (`CostTable`). The acceptance rate is estimated
from each sequence's recent drafts. The draft length is the one with the most tokens/s:

    sum over rows of (1 - a ** (K + 1)) / (1 - a)   divided by   seconds(rows, K)

where a is the acceptance rate of a row, with drafts accepted independently of one another (Leviathan et al. 2023,
https://arxiv.org/abs/2211.17192, equation 1). All rows of a step have the same length, since the longest sets the cost
of the step; rows with a very low acceptance rate get no drafts. A change of length must promise a gain of a few
percent. While speculation is off, occasional probes with the shortest length measure whether it would be faster again.

This module deals with costs and counts only: no tensors, and nothing that changes an output.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_HYSTERESIS = 1.03
"""The gain in tokens/s that another length must promise."""

_MEMORY = 0.95
"""Decay of a sequence's acceptance rate with each verified draft."""

_LONG_MEMORY = 0.99
"""Decay of the rate of all sequences together. It is slower: accepted drafts come in bursts, far apart."""

_PROBE_SHARE = 0.005
"""The share of the time that probes may cost while speculation is off."""

_MAX_PATIENCE = 8
"""The largest factor on the time between probes. The factor doubles with each probe that finds no gain."""

_PROBE_EVERY = 8
"""The fewest steps from one probe to the next."""

_MIN_RATE = 0.05
"""Rows with a lower acceptance rate get no drafts, except in probes."""


class CostTable:
    """Measured seconds of a step, by rows and drafts a row. Row counts are rounded up to the next measured one."""

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


@dataclass(slots=True)
class AcceptanceEstimate:
    """An estimate of an acceptance rate: the chance that a draft is accepted, given that those before it are.

    Attributes:
        rate: an exponential moving average, between 0 and 1.
        memory: the weight of the old rate at each update.
    """

    rate: float
    memory: float = _MEMORY

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a step that verified ``drafted`` tokens and accepted the first ``accepted``.

        Drafts behind the first rejected one carry no information.
        """
        for index in range(min(drafted, accepted + 1)):
            self.rate = self.memory * self.rate + (1 - self.memory) * (index < accepted)


def expected_tokens(rate: float, drafts: int) -> float:
    """The mean number of tokens that a row decides with ``drafts`` drafts: between 1 and ``drafts`` + 1."""
    return drafts + 1.0 if rate >= 1 else (1 - rate ** (drafts + 1)) / (1 - rate)


class DraftLengths:
    """Chooses the draft length of each step."""

    def __init__(self, costs: CostTable, *, prior: float = 0.5) -> None:
        """``prior`` is the acceptance rate assumed before any draft has been verified."""
        self._costs = costs
        self._overall = AcceptanceEstimate(prior, _LONG_MEMORY)
        self._current = 0
        self._shortest = min(costs.draft_lens[1:], default=0)
        self._since_probe = 0
        self._patience = 1

    @property
    def exploring(self) -> bool:
        """Whether the last length that `choose` returned was a probe, if it was not 0."""
        return self._current == 0

    def new_estimate(self) -> AcceptanceEstimate:
        """The estimate of a sequence without verified drafts: the rate of all sequences."""
        return AcceptanceEstimate(self._overall.rate)

    def observe(self, sequence: AcceptanceEstimate, drafted: int, accepted: int) -> None:
        """Learn from the verification of one sequence in a step."""
        sequence.observe(drafted, accepted)
        self._overall.observe(drafted, accepted)

    def choose(self, rows: Sequence[AcceptanceEstimate]) -> int:
        """Choose the drafts a row of the next step; 0 is plain decoding.

        Args:
            rows: the estimates of the rows that may have drafts.
        """
        if not rows:
            return 0
        # Change the length only for a gain that is worth it.
        count = len(rows)
        rates = [self._expected(row) for row in rows]
        values = {drafts: self._value(rates, count, drafts) for drafts in self._costs.draft_lens}
        best = max(values, key=lambda drafts: (values[drafts], -drafts))
        if values[best] > _HYSTERESIS * values[self._current]:
            self._current = best
        if self._current:
            self._since_probe, self._patience = 0, 1
            return self._current
        # Speculation is off: probe with the shortest length, rarely enough that probes cost at most their share.
        self._since_probe += 1
        extra = self._costs.seconds(count, self._shortest) / self._costs.seconds(count, 0) - 1
        if self._since_probe < self._patience * max(_PROBE_EVERY, extra / _PROBE_SHARE):
            return 0
        self._since_probe, self._patience = 0, min(2 * self._patience, _MAX_PATIENCE)
        return self._shortest

    def drafts_for(self, sequence: AcceptanceEstimate, drafts: int) -> int:
        """The number of drafts of one sequence in a step of length ``drafts``."""
        return drafts if self._expected(sequence) >= _MIN_RATE or self._current == 0 else 0

    def _expected(self, sequence: AcceptanceEstimate) -> float:
        """The expected acceptance rate of a sequence: the mean of its own and that of all sequences."""
        return (sequence.rate + self._overall.rate) / 2

    def _value(self, rates: Sequence[float], count: int, drafts: int) -> float:
        """Expected tokens/s with this draft length."""
        tokens = sum([expected_tokens(rate, drafts if rate >= _MIN_RATE else 0) for rate in rates])
        return tokens / self._costs.seconds(count, drafts)
