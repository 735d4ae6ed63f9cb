"""``DraftBudgets``: chooses the drafts of each row in each step, so that speculation is faster than decoding, or off.

Every (row, position) has a probability to survive: that its draft and all drafts before it are accepted. A draft that
survives is a token. A verify takes longer, the more drafts it has, and a row that the drafter has not followed must catch up
first. The budgets are those with the most tokens/s over all rows:

    (rows + sum of the survival of all drafts)  divided by  seconds(rows, drafts) + catching up

They are found by a price: at the best rate of L tokens/s, a position is worth its cost if it survives with a probability
above L times its seconds (Dinkelbach 1967, https://doi.org/10.1287/mnsc.13.7.492). A row catches up if that is worth it for
the tokens that it probably still decides. The catching up with all requests to come counts as well.

- The survival comes from the row's own drafts and from the rates of all rows at each position (chain rule; Leviathan et al.
  2023, https://arxiv.org/abs/2211.17192, assume one rate for all positions).
- The seconds are measured once (`draftline.spec.step_costs`), and corrected by those that steps then take.
- Drafting begins, or changes its length, for a gain of a few percent. It ends as soon as it is no gain.
- While it is off, rare probes of a few rows measure whether it would be faster again.

This module deals with costs and counts only: no tensors, and nothing that changes an output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftline.spec.step_costs import NO_CATCH_UP, CatchUpCost, CostTable

_HYSTERESIS = 1.03
"""The gain in tokens/s that drafting, or another length, must promise."""

_SURELY_LOST = 1.01
"""The gain in tokens/s that ends drafting."""

_ROW_MEMORY = 0.95
"""Decay of a row's drafts with each verified one."""

_ROW_PRIOR = 4.0
"""The number of accepted drafts, as many as expected, that a row begins with."""

_LONG_MEMORY = 0.997
"""Decay of the rates of all rows together. It is slower than a row's: accepted drafts come in bursts, far apart."""

_KNOWN = 48
"""The number of drafts whose acceptance is known before anything else is decided."""

_PRIOR_WEIGHT = 4
"""The number of drafts that the assumed rate counts for, until it is known better."""

_OPTIMISM = 0.5
"""By how many standard errors rates are taken for better than their means."""

_PROBE_SHARE = 0.008
"""The share of the time that probes may cost while speculation is off."""

_MAX_PATIENCE = 4
"""The largest factor on the time between probes. The factor doubles with each probe that finds no gain."""

_PROBE_EVERY = 8
"""The fewest steps from one probe to the next."""

_PROBED_ROWS = 8
"""The most rows of a probe."""

STEPS_PER_CHOICE = 4
"""Steps for which a choice of drafts stands: acceptance changes slowly, and a choice costs host time."""

FEW_ROWS = 8
"""So many rows do not wait for the next choice when one joins them."""

_FORGETTING = 0.01
"""The share by which the rate of a row without drafts moves towards the rate of all rows, with each choice."""

_STEP_MEMORY = 0.95
"""Decay of the durations of steps, relative to those measured at the start."""

_WORST_STEP = 3.0
"""Steps that took longer than this many times what they should were disturbed by something else."""


@dataclass(slots=True)
class _Mean:
    """A moving average.

    Attributes:
        rate: the average.
        weight: the number of values that it stands for.
    """

    rate: float
    weight: float

    def update(self, value: float, memory: float) -> None:
        """Learn a value: the mean with all before it, until an exponential average with ``memory`` forgets more slowly."""
        memory = min(memory, self.weight / (self.weight + 1))
        self.weight += 1
        self.rate = memory * self.rate + (1 - memory) * value


@dataclass(slots=True)
class RowAcceptance:
    """How a row's drafts fare, compared with those of all rows at the same positions.

    Attributes:
        accepted: its accepted drafts, where older ones count less.
        expected: how many were to be expected.
    """

    accepted: float = 0.0
    expected: float = 0.0

    @property
    def relative(self) -> float:
        """Its acceptance rate, as a factor of that of all rows."""
        return (self.accepted + _ROW_PRIOR) / (self.expected + _ROW_PRIOR)

    def observe(self, accepted: bool, expected: float) -> None:
        """Learn from a draft that is accepted with a probability of ``expected`` in all rows."""
        self.accepted = _ROW_MEMORY * self.accepted + accepted
        self.expected = _ROW_MEMORY * self.expected + expected

    def forget(self) -> None:
        """Move towards the rate of all rows."""
        self.accepted *= 1 - _FORGETTING
        self.expected *= 1 - _FORGETTING


@dataclass(slots=True)
class DraftingRow:
    """What decides about the drafts of one row.

    Attributes:
        acceptance: of its drafts.
        lacking: known tokens that the drafter must read before it can draft for the row.
        remaining: tokens that the row probably still decides.
        prompt: tokens of its prompt, and probably of the next request's in its place.
        output: tokens that a request probably decides.
    """

    acceptance: RowAcceptance
    lacking: int = 0
    remaining: float = math.inf
    prompt: int = 0
    output: float = math.inf


@dataclass(slots=True)
class _Choice:
    """Budgets with their expected tokens/s."""

    rate: float
    budgets: list[int] = field(default_factory=list)


class DraftBudgets:
    """Chooses the drafts of each row."""

    def __init__(self, costs: CostTable, catch_up: CatchUpCost = NO_CATCH_UP, *, prior: float | None = None) -> None:
        """``prior`` is the acceptance rate before any draft has been verified; None where the first drafts have to tell."""
        self._costs = costs
        self._catch_up = catch_up
        self._unknown = _KNOWN if prior is None else 0
        self._overall = _Mean(0.5 if prior is None else prior, _PRIOR_WEIGHT)
        self._at = [_Mean(self._overall.rate, 0.0) for _ in range(costs.draft_lens[-1])]
        self._longest = 0
        self._shortest = min(costs.draft_lens[1:], default=0)
        self._since_probe = 0
        self._patience = 1
        # Seconds of steps without and with drafts, relative to the measured ones.
        self._drift = {drafting: _Mean(1.0, 1 / (1 - _STEP_MEMORY)) for drafting in (False, True)}

    @property
    def exploring(self) -> bool:
        """Whether the last budgets that `choose` returned were a probe, if they were not all 0."""
        return self._longest == 0

    def observe(self, row: RowAcceptance, drafted: int, accepted: int) -> None:
        """Learn from a step that verified ``drafted`` tokens of one row and accepted the first ``accepted``.

        Drafts behind the first rejected one carry no information.
        """
        for index in range(min(drafted, accepted + 1, len(self._at))):
            right = index < accepted
            self._unknown -= 1
            row.observe(right, self._rate(index))
            self._overall.update(right, _LONG_MEMORY)
            self._at[index].update(right, _LONG_MEMORY)

    def observe_step(self, rows: int, drafts: int, longest: int, seconds: float) -> None:
        """Learn from the duration of a step in which no row computed a prompt, or had to be caught up with.

        Args:
            rows: all rows.
            drafts: those of all rows together.
            longest: the most of any row.
            seconds: the time that it took.
        """
        if longest > self._costs.draft_lens[-1]:
            return
        ratio = seconds / self._costs.of_drafts(rows, drafts, longest)
        drift = self._drift[longest > 0]
        if ratio < _WORST_STEP * max(1.0, drift.rate):
            drift.update(ratio, _STEP_MEMORY)

    def choose(self, rows: Sequence[DraftingRow]) -> list[int]:
        """Choose the drafts of each row in the next steps; none for all is plain decoding.

        Args:
            rows: the rows that may have drafts.
        """
        if not rows:
            return []
        if self._unknown > 0:
            few = sorted(range(len(rows)), key=lambda index: rows[index].lacking)[:_PROBED_ROWS]
            drafts = self._costs.draft_lens[-1] if len(rows) == 1 else self._shortest
            return [drafts if index in few else 0 for index in range(len(rows))]
        rates = [self._rate(index) for index in range(len(self._at))]
        survival = [_survival(rates, row.acceptance.relative) for row in rows]
        choices = {longest: self._best(rows, survival, longest) for longest in self._costs.draft_lens}
        best = max(choices, key=lambda longest: (choices[longest].rate, -longest))
        needed = _HYSTERESIS if best else _SURELY_LOST
        if choices[best].rate > needed * choices[self._longest].rate:
            self._longest = best
        if self._longest:
            self._since_probe, self._patience = 0, 1
            budgets = choices[self._longest].budgets
            for row, budget in zip(rows, budgets, strict=True):
                if not budget:
                    row.acceptance.forget()
            return budgets
        return self._probe(rows)

    def _probe(self, rows: Sequence[DraftingRow]) -> list[int]:
        """The shortest drafts for a few rows, rarely enough that probes cost at most their share; else none."""
        self._since_probe += 1
        cheapest = sorted(range(len(rows)), key=lambda index: rows[index].lacking)
        plain = self._costs.seconds(len(rows), 0) * STEPS_PER_CHOICE
        extra = self._costs.seconds(len(rows), self._shortest) * self._correction * STEPS_PER_CHOICE - plain
        # As many as catch up within the time that the verifies take longer.
        probed, lacking = cheapest[:1], rows[cheapest[0]].lacking
        for index in cheapest[1:_PROBED_ROWS]:
            if self._catch_up.seconds(lacking + rows[index].lacking) > extra:
                break
            probed.append(index)
            lacking += rows[index].lacking
        extra += self._catch_up.seconds(lacking)
        if self._since_probe < self._patience * max(_PROBE_EVERY, extra / plain / _PROBE_SHARE):
            return [0] * len(rows)
        self._since_probe, self._patience = 0, min(2 * self._patience, _MAX_PATIENCE)
        return [self._shortest if index in probed else 0 for index in range(len(rows))]

    @property
    def _correction(self) -> float:
        """How much longer steps with drafts take than measured, compared with steps without."""
        return self._drift[True].rate / self._drift[False].rate

    def _rate(self, index: int) -> float:
        """The acceptance rate at a position. One that was hardly ever reached has the rate of all positions."""
        at = self._at[index]
        share = at.weight / (at.weight + _PRIOR_WEIGHT)
        mean = share * at.rate + (1 - share) * self._overall.rate
        # In doubt, it is better than it seems: drafting ends when that is known, since it may begin again late.
        return mean + math.sqrt(mean * (1 - mean) / (at.weight + _PRIOR_WEIGHT)) * _OPTIMISM

    def _best(self, rows: Sequence[DraftingRow], survival: Sequence[Sequence[float]], longest: int) -> _Choice:
        """The best budgets of at most ``longest`` drafts a row."""
        count = len(rows)
        choice = _Choice(count / self._costs.seconds(count, 0), [0] * count)
        if not longest:
            return choice
        correction = self._correction
        another = self._costs.of_another(count, longest) * correction
        catch_up = self._catch_up
        # A row that joins many others has no drafts until the next choice.
        waiting = 0.0 if count <= FEW_ROWS else STEPS_PER_CHOICE / 2
        together = max(1, sum([row.lacking > 0 for row in rows]))
        for _ in range(2):  # the second price is closer to the best rate
            price, tokens, requests, prompts = choice.rate, float(count), 0.0, 0.0
            budgets, wanted = [], []
            for row, survives in zip(rows, survival, strict=True):
                budget = longest
                while budget and survives[budget] < price * another:
                    budget -= 1
                gained = sum(survives[1 : budget + 1])
                decided, worth = 1.0 + gained, gained - price * another * budget
                # In the long run, the row catches up with the prompts of all requests to come.
                steady = catch_up.a_token * row.prompt * decided / row.output
                # At present, it may have tokens to catch up with, as other rows have at the same time.
                late = row.lacking and catch_up.base / together + catch_up.a_token * row.lacking
                late *= decided / max(1.0, row.remaining)
                if budget and worth > price * steady:
                    wanted.append(budget)
                    tokens += gained * max(0.0, 1.0 - waiting * decided / row.output)
                    requests += decided / row.output
                    prompts += row.prompt * decided / row.output
                budgets.append(budget if worth > price * max(late, steady) else 0)
            if not wanted:
                return _Choice(0.0, [0] * count)
            seconds = self._costs.of_drafts(count, sum(wanted), max(wanted)) * correction
            passes = min(requests, 1.0 if count <= FEW_ROWS else 1.0 / STEPS_PER_CHOICE)
            seconds += catch_up.base * passes + catch_up.a_token * prompts
            choice = _Choice(tokens / seconds, budgets)
        return choice


def _survival(rates: Sequence[float], relative: float) -> list[float]:
    """The probability that all drafts up to each position are accepted, with 1 before the first."""
    survival = [1.0]
    for rate in rates:
        survival.append(survival[-1] * min(0.995, rate * relative))
    return survival
