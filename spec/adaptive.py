"""``DraftLengths``: how many tokens each sequence should draft, so that speculation pays or is off.

A step that verifies K drafts a row takes longer than one that verifies none, and decides more tokens if drafts are
accepted. Both are known: how long a step takes is measured once, by rows and drafts (`CostTable`), and how likely a draft
is accepted is learned from each sequence's own recent drafts. The draft length is what gives most tokens a second:

    sum over rows of (1 - a ** (K + 1)) / (1 - a)   by   seconds(rows, K)

where a is a row's acceptance rate, as if each draft were accepted independently of the others (Leviathan et al. 2023,
https://arxiv.org/abs/2211.17192, equation 1). One length serves the whole step, since the step's cost depends on the
longest; rows whose own drafts are hardly ever accepted get none. A change must promise a gain of a few percent, and while
speculation is off a single draft now and then finds out whether it would pay again.

Costs and counts only: no tensors, and nothing that changes an output.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_HYSTERESIS = 1.03
"""How much better another length must look before it is taken."""

_MEMORY = 0.95
"""What a sequence's acceptance rate keeps of itself with each draft that was verified."""

_LONG_MEMORY = 0.99
"""The same for the rate of all sequences together: right drafts come in bursts, with long stretches in between."""

_PROBE_SHARE = 0.005
"""The share of the time that probes may cost while no length pays."""

_MOST_PATIENCE = 8
"""How many times longer the time between probes becomes while they find nothing: it doubles with each."""

_PROBE_EVERY = 8
"""Choices from one probe to the next, at least."""

_HOPELESS = 0.05
"""Rows below this acceptance rate draft nothing; a probe may find them better."""


class CostTable:
    """Measured seconds of a step, by rows and drafts a row; in between, of the next measured number of rows."""

    def __init__(self, seconds: Mapping[tuple[int, int], float]) -> None:
        """``seconds`` of steps by (rows, drafts a row), every number of rows with the same drafts, 0 among them.

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
        at = min(bisect_left(self._rows, rows), len(self._rows) - 1)
        return self._seconds[self._rows[at], drafts]


@dataclass(slots=True)
class Acceptance:
    """An acceptance rate: the chance that a draft is accepted if those before it are.

    Attributes:
        rate: between 0 and 1; a moving average.
        memory: what it keeps of itself with each draft.
    """

    rate: float
    memory: float = _MEMORY

    def observe(self, drafted: int, accepted: int) -> None:
        """A step verified ``drafted`` tokens and accepted the first ``accepted``: later ones tell nothing."""
        for place in range(min(drafted, accepted + 1)):
            self.rate = self.memory * self.rate + (1 - self.memory) * (place < accepted)


def expected_tokens(rate: float, drafts: int) -> float:
    """Tokens that a row decides on average with so many drafts: between 1 and ``drafts`` + 1."""
    return drafts + 1.0 if rate >= 1 else (1 - rate ** (drafts + 1)) / (1 - rate)


class DraftLengths:
    """Chooses the draft length of each step."""

    def __init__(self, costs: CostTable, *, prior: float = 0.5) -> None:
        """``prior`` is the acceptance rate that is assumed until drafts have been verified."""
        self._costs = costs
        self._typical = Acceptance(prior, _LONG_MEMORY)
        self._current = 0
        self._shortest = min(costs.draft_lens[1:], default=0)
        self._since_probe = 0
        self._patience = 1

    @property
    def exploring(self) -> bool:
        """Whether what `choose` said last was a probe."""
        return self._current == 0

    def newcomer(self) -> Acceptance:
        """The acceptance rate of a sequence that has not drafted yet."""
        return Acceptance(self._typical.rate)

    def observe(self, sequence: Acceptance, drafted: int, accepted: int) -> None:
        """Learn from a step's verification of one sequence."""
        sequence.observe(drafted, accepted)
        self._typical.observe(drafted, accepted)

    def choose(self, rows: Sequence[Acceptance]) -> int:
        """The drafts a row for the next step, over the rows that may draft. 0 is plain decoding."""
        if not rows:
            return 0
        count = len(rows)
        rates = [self._expected(row) for row in rows]
        values = {drafts: self._value(rates, count, drafts) for drafts in self._costs.draft_lens}
        best = max(values, key=lambda drafts: (values[drafts], -drafts))
        if values[best] > _HYSTERESIS * values[self._current]:
            self._current = best
        if self._current:
            self._since_probe, self._patience = 0, 1
            return self._current
        self._since_probe += 1
        extra = self._costs.seconds(count, self._shortest) / self._costs.seconds(count, 0) - 1
        if self._since_probe < self._patience * max(_PROBE_EVERY, extra / _PROBE_SHARE):
            return 0
        self._since_probe, self._patience = 0, min(2 * self._patience, _MOST_PATIENCE)
        return self._shortest

    def wants(self, sequence: Acceptance, drafts: int) -> int:
        """How many of the step's ``drafts`` a sequence should have."""
        return drafts if self._expected(sequence) >= _HOPELESS or self._current == 0 else 0

    def _expected(self, sequence: Acceptance) -> float:
        """What to expect of a sequence's next drafts: halfway between its own recent ones and everybody's."""
        return (sequence.rate + self._typical.rate) / 2

    def _value(self, rates: Sequence[float], count: int, drafts: int) -> float:
        tokens = sum([expected_tokens(rate, drafts if rate >= _HOPELESS else 0) for rate in rates])
        return tokens / self._costs.seconds(count, drafts)
