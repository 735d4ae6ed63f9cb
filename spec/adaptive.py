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
from dataclasses import dataclass

from draftline.spec.step_costs import NO_CATCH_UP, CatchUpCost, CostTable

_HYSTERESIS = 1.015
"""The gain in tokens/s that drafting, or another length, must promise."""

_SURELY_LOST = 1.005
"""The gain in tokens/s that ends drafting."""

_ROW_MEMORY = 0.95
"""Decay of a row's drafts with each verified one."""

_ROW_PRIORS = 5.0, 50.0
"""The number of drafts, right as often as those of all rows, that a row begins with: where rows differ, and where not."""

_LONG_MEMORY = 0.997
"""Decay of the rates of all rows together. It is slower than a row's: accepted drafts come in bursts, far apart."""

_PRIOR_RATE, _PRIOR_WEIGHT = 0.6, 4
"""The acceptance rate before any draft has been verified, and the number of drafts that it counts for."""

_KNOWN = 16
"""Until so many drafts have been verified, only a few rows draft."""

_OPTIMISM = 0.5
"""By how many standard errors rates are taken for better than their means."""

_PROBE_SHARE = 0.012
"""The share of the time that probes may cost while speculation is off."""

_PROBED_ROWS = 8
"""The most rows of a probe."""

STEPS_PER_CHOICE = 4
"""Steps for which a choice of drafts stands: acceptance changes slowly, and a choice costs host time."""

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
        drafts: how many there were.
    """

    accepted: float = 0.0
    expected: float = 0.0
    drafts: float = 0.0

    def relative(self, prior: float) -> float:
        """Its acceptance rate, as a factor of that of all rows; it begins with ``prior`` drafts that were accepted."""
        return (self.accepted + prior) / (self.expected + prior) if prior else 1.0

    def observe(self, accepted: bool, expected: float) -> None:
        """Learn from a draft that is accepted with a probability of ``expected`` in all rows."""
        self.decay(_ROW_MEMORY)
        self.accepted += accepted
        self.expected += expected
        self.drafts += 1

    def decay(self, memory: float) -> None:
        """Move towards the rate of all rows."""
        self.accepted *= memory
        self.expected *= memory
        self.drafts *= memory


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


@dataclass(frozen=True, slots=True)
class _Offer:
    """Drafts of at most ``longest`` tokens a row.

    Attributes:
        longest: the most drafts of a row.
        price: the tokens/s that a second is worth.
        another: seconds of one draft more in a step.
        catch_up: seconds of catching up.
        together: rows that catch up at the same time.
    """

    longest: int
    price: float
    another: float
    catch_up: CatchUpCost
    together: int

    def budget(self, row: DraftingRow, survives: Sequence[float]) -> tuple[int, float]:
        """The drafts that are worth it for a row at present, and the tokens that they gain if it goes on like this."""
        price, budget = self.price, self.longest
        while budget and survives[budget] < price * self.another:
            budget -= 1
        if not budget:
            return 0, 0.0
        gained = sum(survives[1 : budget + 1])
        worth = gained - price * self.another * budget
        # In the long run, the row catches up with the prompts of all requests to come.
        steady = self.catch_up.a_token * row.prompt * (1 + gained) / row.output
        # At present, it may have tokens to catch up with, as other rows have at the same time.
        late = 0.0
        if row.lacking:
            late = self.catch_up.base / self.together + self.catch_up.a_token * row.lacking
            late *= (1 + gained) / max(1.0, row.remaining)
        return budget if worth > price * max(late, steady) else 0, gained if worth > price * steady else 0.0


@dataclass(slots=True)
class _Choice:
    """Budgets with their expected tokens/s, and the offer that they follow from."""

    rate: float
    budgets: list[int]
    offer: _Offer | None = None


class DraftBudgets:
    """Chooses the drafts of each row."""

    def __init__(self, costs: CostTable, catch_up: CatchUpCost = NO_CATCH_UP, *, prior: float | None = None) -> None:
        """``prior`` is the acceptance rate before any draft has been verified; None where the first drafts have to tell."""
        self._costs = costs
        self._catch_up = catch_up
        self._unknown = _KNOWN if prior is None else 0
        self._overall = _Mean(_PRIOR_RATE if prior is None else prior, _PRIOR_WEIGHT)
        self._at = [_Mean(self._overall.rate, 0.0) for _ in range(costs.draft_lens[-1])]
        # How badly drafts were predicted with each of the priors, in nats.
        self._surprise = dict.fromkeys(_ROW_PRIORS, 0.0)
        self._choice = _Choice(0.0, [])
        self._shortest = min(costs.draft_lens[1:], default=0)
        self._since_probe = 0
        # Seconds of steps without and with drafts, relative to the measured ones.
        self._drift = {drafting: _Mean(1.0, 1 / (1 - _STEP_MEMORY)) for drafting in (False, True)}

    @property
    def exploring(self) -> bool:
        """Whether the last budgets that `choose` returned were a probe, if they were not all 0."""
        return self._choice.offer is None

    def observe(self, row: RowAcceptance, drafted: int, accepted: int) -> None:
        """Learn from a step that verified ``drafted`` tokens of one row and accepted the first ``accepted``.

        Drafts behind the first rejected one carry no information.
        """
        for index in range(min(drafted, accepted + 1, len(self._at))):
            right = index < accepted
            rate = self._rate(index)
            for prior in _ROW_PRIORS:
                chance = min(0.99, max(0.01, rate * row.relative(prior * self._overall.rate)))
                surprise = -math.log(chance if right else 1 - chance)
                self._surprise[prior] = _LONG_MEMORY * self._surprise[prior] + surprise
            self._unknown -= 1
            row.observe(right, rate)
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
        for row in rows:
            row.acceptance.decay(1 - _FORGETTING)
        if self._unknown > 0:
            self._choice = _Choice(0.0, [])
            return self._of_few(rows, self._cheapest(rows, math.inf))
        survival = self._survival(rows)
        choices = {longest: self._best(rows, survival, longest) for longest in self._costs.draft_lens}
        best = max(choices, key=lambda longest: (choices[longest].rate, -longest))
        standing = self._choice.offer.longest if self._choice.offer else 0
        needed = _HYSTERESIS if best else _SURELY_LOST
        if choices[best].rate > needed * choices[standing].rate:
            standing = best
        self._choice = choices[standing]
        return self._choice.budgets if standing else self._probe(rows)

    def join(self, row: DraftingRow) -> int:
        """The drafts of a row that came after the last choice."""
        offer = self._choice.offer
        return 0 if offer is None else offer.budget(row, self._survival([row])[0])[0]

    def _probe(self, rows: Sequence[DraftingRow]) -> list[int]:
        """The shortest drafts for a few rows, rarely enough that probes cost at most their share; else none."""
        self._since_probe += 1
        plain = self._costs.seconds(len(rows), 0) * STEPS_PER_CHOICE
        extra = self._costs.seconds(len(rows), self._shortest) * self._correction * STEPS_PER_CHOICE - plain
        # As many as catch up within the time that the verifies take longer.
        probed = self._cheapest(rows, extra)
        extra += self._catch_up.seconds(sum([rows[index].lacking for index in probed]))
        if self._since_probe < extra / plain / _PROBE_SHARE:
            return [0] * len(rows)
        self._since_probe = 0
        return self._of_few(rows, probed)

    def _cheapest(self, rows: Sequence[DraftingRow], seconds: float) -> list[int]:
        """The few rows that are known least, as far as they catch up within so many seconds; at least one."""
        order = sorted(range(len(rows)), key=lambda index: (rows[index].lacking, rows[index].acceptance.drafts))
        probed, lacking = order[:1], rows[order[0]].lacking
        for index in order[1:_PROBED_ROWS]:
            lacking += rows[index].lacking
            if self._catch_up.seconds(lacking) > seconds:
                break
            probed.append(index)
        return probed

    def _of_few(self, rows: Sequence[DraftingRow], few: Sequence[int]) -> list[int]:
        return [self._shortest if index in few else 0 for index in range(len(rows))]

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

    def _survival(self, rows: Sequence[DraftingRow]) -> list[list[float]]:
        """For each row, the probability that all drafts up to each position are accepted, with 1 before the first."""
        rates, found = [self._rate(index) for index in range(len(self._at))], []
        prior = min(_ROW_PRIORS, key=self._surprise.__getitem__) * self._overall.rate
        for row in rows:
            relative, survival = row.acceptance.relative(prior), [1.0]
            for rate in rates:
                survival.append(survival[-1] * min(0.995, rate * relative))
            found.append(survival)
        return found

    def _best(self, rows: Sequence[DraftingRow], survival: Sequence[Sequence[float]], longest: int) -> _Choice:
        """The best budgets of at most ``longest`` drafts a row."""
        count = len(rows)
        choice = _Choice(count / self._costs.seconds(count, 0), [0] * count)
        if not longest:
            return choice
        another = self._costs.of_another(count, longest) * self._correction
        together = max(1, sum([row.lacking > 0 for row in rows]))
        for _ in range(2):  # the second price is closer to the best rate
            offer = _Offer(longest, choice.rate, another, self._catch_up, together)
            found = [offer.budget(row, survives) for row, survives in zip(rows, survival, strict=True)]
            drafts = [budget for budget, gained in found if gained]
            if not any(drafts):
                return _Choice(0.0, [0] * count)
            seconds = self._costs.of_drafts(count, sum(drafts), max(drafts)) * self._correction
            requests = [(1 + gained) / row.output for row, (_, gained) in zip(rows, found, strict=True) if gained]
            prompts = [
                (1 + gained) * row.prompt / row.output for row, (_, gained) in zip(rows, found, strict=True) if gained
            ]
            seconds += self._catch_up.base * min(1.0, sum(requests)) + self._catch_up.a_token * sum(prompts)
            tokens = count + sum([gained for _, gained in found])
            choice = _Choice(tokens / seconds, [budget for budget, _ in found], offer)
        return choice
