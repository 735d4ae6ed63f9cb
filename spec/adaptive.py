"""``DraftBudgets``: chooses the drafts of each row in each step, so that speculation is faster than decoding, or off.

Every (row, position) has a probability to survive: that its draft and all drafts before it are accepted. A draft that
survives is a token. A verify takes longer, the more drafts it has, and a row that the drafter has not followed must
catch up first. The budgets are those with the most tokens/s over all rows:

    (rows + sum of the survival of all drafts)  divided by  seconds(rows, drafts) + catching up

They are found by a price: at the best rate of L tokens/s, a position is worth its cost if it survives with a
probability above L times its seconds (Dinkelbach 1967, https://doi.org/10.1287/mnsc.13.7.492). A row catches up if that
is worth it for the tokens that it probably still decides. The catching up with all requests to come counts as well.

- The survival comes from the row's own drafts and from the rates of all rows of its kind at each position (chain rule;
  Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, assume one rate for all positions).
- The seconds are measured once, and corrected by those that steps then take (`draftline.spec.step_costs`).
- Drafting begins, or changes its length, for a gain of a few percent. It ends as soon as it is no gain.
- While it is off, rare probes of a few rows measure whether it would be faster again. While it is on, rare steps
  without drafts measure what they take at present: the machine may have become busy, which slows steps with drafts
  alone. Others have a draft more or fewer, which may have been measured too long.

This module deals with costs and counts only: no tensors, and nothing that changes an output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from draftline.spec.acceptance_rates import KINDS, ROW_MEMORY, AcceptanceRates
from draftline.spec.offers import DraftingRow, DraftingRows, Expected, Floats, Ints, Offers, RowAcceptance
from draftline.spec.step_costs import NO_CATCH_UP, CatchUpCost, CostTable, Pace

_HYSTERESIS = 1.015
"""The gain in tokens/s that drafting, or another length, must promise."""

_SURELY_LOST = 1.005
"""The gain in tokens/s that ends drafting."""

VerifiedRow = tuple[RowAcceptance, int, int]
"""A row of a step that verified drafts: how many there were, and how many of the first were accepted."""

_ROW_PRIORS = 5.0, 50.0
"""The number of drafts, right as often as those of all rows, that a row begins with: where rows differ, and where
not."""

_COMPARED_ROWS = 16
"""About so many rows of a step tell which prior predicts better."""

_SURPRISE_MEMORY = 0.997
"""Decay of what is known of the priors with each draft that compares them."""

_KNOWN = 16
"""Until so many drafts have been verified, only a few rows draft."""

_PROBE_SHARE = 0.012
"""The share of the time that probes may cost while speculation is off."""

_PROBED_ROWS = 8
"""The most rows of a probe."""

STEPS_PER_CHOICE = 4
"""The fewest steps for which a choice of drafts stands, and those of a probe: acceptance changes slowly."""

_OTHERS_SHARE = 0.004
"""The share of the time that probes of another length, or without drafts, may cost while speculation is on."""

_DRAFTING_STEPS = 200
"""The fewest steps with drafts between two such probes: after one, a drafter may have to catch up."""

_FIRST_DRAFTING_STEPS = 100.0
"""The steps before the first of them, when it is not known yet what drafts take. Until the next ones it is twice as
long each time."""

_FORGETTING = 0.01
"""The share by which the rate of a row without drafts moves towards the rate of all rows, with each choice."""


class DraftBudgets:
    """Chooses the drafts of each row.

    Attributes:
        stands_for: for how many steps the last choice stands.
    """

    def __init__(self, costs: CostTable, catch_up: CatchUpCost = NO_CATCH_UP, *, prior: float | None = None) -> None:
        """``prior`` is the acceptance rate before any draft is verified; None where the first drafts have to tell."""
        self._costs = costs
        self._catch_up = catch_up
        self._unknown = _KNOWN if prior is None else 0
        self._most = costs.draft_lens[-1]
        self._rates = [AcceptanceRates(self._most, prior) for _ in range(KINDS)]
        # A row's drafts count the less, the older they are: the factor of those before its last n, and what these
        # count.
        self._fading = [ROW_MEMORY**count for count in range(self._most + 1)]
        self._counting = [0.0, *accumulate(self._fading)]
        # How badly drafts were predicted with each of the priors, in nats.
        self._surprise = dict.fromkeys(_ROW_PRIORS, 0.0)
        self._comparisons = 0
        self._standing: Offers | None = None  # what the last choice follows; None where it was plain decoding
        self._lens = np.array(costs.draft_lens, np.int64)
        self._shortest = min(costs.draft_lens[1:], default=0)
        self._since_probe = 0
        self._joined: Offers | None = None  # what rows follow that come later; None where none drafts, and in probes
        self._drafting_steps = 0  # since the last probe of another length
        self._probes = 0  # of other lengths
        self._first_probes = _FIRST_DRAFTING_STEPS  # the most before the next one; it doubles up to infinity
        self._pace = Pace()
        self.stands_for = 0

    @property
    def exploring(self) -> bool:
        """Whether the last budgets that `choose` returned were a probe of drafts, if they were not all 0."""
        return self._standing is None

    def observe(self, verified: Sequence[VerifiedRow]) -> None:
        """Learn from a step that verified drafts of some rows.

        Drafts behind the first rejected one carry no information.
        """
        if self._unknown > 0:
            self._expect()
        most = self._most
        self._compare_priors(verified)
        fading, counting = self._fading, self._counting
        # How many rows of each kind have so many drafts that tell something, and so many right ones among them.
        telling = [[0] * (most + 1) for _ in self._rates]
        right = [[0] * (most + 1) for _ in self._rates]
        for row, drafted, accepted in verified:
            count = min(drafted, accepted + 1, most)
            if not count:
                continue
            hits, kind = min(accepted, count), row.kind
            telling[kind][count] += 1
            right[kind][hits] += 1
            expected = self._rates[kind].of_first[count]
            row.observe(fading[count - hits] * counting[hits], expected, counting[count], fading[count])
            self._unknown -= count
        for rates, of_kind, right_of_kind in zip(self._rates, telling, right, strict=True):
            rates.observe(of_kind, right_of_kind)

    def observe_step(
        self, rows: int, drafts: int, longest: int, seconds: float, *, prompt_tokens: int = 0, caught_up: int = 0
    ) -> None:
        """Learn from the duration of a step in which some rows decoded.

        Args:
            rows: those rows.
            drafts: those of all rows together.
            longest: the most of any row.
            seconds: the time that it took.
            prompt_tokens: tokens of prompts that it computed, too.
            caught_up: tokens that the drafter read before.
        """
        if longest > self._most:
            return
        measured = self._costs.of_drafts(rows, drafts, longest) + self._catch_up.seconds(caught_up)
        prompts = prompt_tokens * self._costs.a_token
        self._pace.observe(seconds, measured, prompts=prompts, kind=self._costs.kind(rows, longest))

    def seconds(self, rows: int) -> float:
        """Seconds of a step of so many rows without drafts, as measured at the start."""
        return self._costs.seconds(rows, 0)

    def choose(self, rows: Sequence[DraftingRow], steps: int = STEPS_PER_CHOICE) -> list[int]:
        """Choose the drafts of each row in the next steps; none for all is plain decoding.

        Args:
            rows: the rows that may have drafts.
            steps: for how many steps the choice will stand. A probe stands for `STEPS_PER_CHOICE`.
        """
        self.stands_for, self._joined = steps, self._standing
        if not rows:
            return []
        self._joined = None
        for row in rows:
            row.acceptance.decay(1 - _FORGETTING)
        if self._unknown > 0:
            self._standing, self.stands_for = None, STEPS_PER_CHOICE
            return self._of_few(rows, self._cheapest(rows, math.inf))
        offers, rates, budgets = self._best(DraftingRows.of(rows, self._expected()))
        best = int(rates.argmax())
        standing = 0 if self._standing is None else int(np.searchsorted(self._lens, self._standing.longest[0]))
        needed = _HYSTERESIS if best else _SURELY_LOST
        chosen = best if rates[best] > needed * rates[standing] else standing
        self._standing = offers.one(chosen) if chosen else None
        if not chosen:
            return self._probe(rows, steps)
        other = self._other_length(len(rows), chosen)
        lost = STEPS_PER_CHOICE * (1 - rates[other] / rates[chosen])  # by a probe of it, in steps
        if self._drafting_steps >= min(max(_DRAFTING_STEPS, lost / _OTHERS_SHARE), self._first_probes):
            self._drafting_steps, self.stands_for = 0, STEPS_PER_CHOICE
            self._first_probes *= 2
            self._probes += 1
            chosen = other
        else:
            self._drafting_steps += steps
            self._joined = self._standing
        drafts: list[int] = budgets[chosen].tolist()
        return drafts

    def _other_length(self, rows: int, chosen: int) -> int:
        """The index of the length of the next probe beside the ``chosen`` one: none, then one of its neighbours."""
        turn, up = self._probes % 2, 1 if self._probes % 4 == 1 else -1
        neighbours = [index for index in (chosen + up, chosen - up) if 0 < index < len(self._lens)]
        own = self._costs.kind(rows, int(self._lens[chosen]))
        apart = [index for index in neighbours if self._costs.kind(rows, int(self._lens[index])) != own]
        return apart[0] if turn and apart else 0

    def join(self, row: DraftingRow) -> int:
        """The drafts of a row that came after the last choice."""
        if self._joined is None:
            return 0
        return self._joined.budget(row, self._expected())

    def _probe(self, rows: Sequence[DraftingRow], steps: int) -> list[int]:
        """The shortest drafts for a few rows, rarely enough that probes cost at most their share; else none."""
        self._since_probe += steps
        plain = self._costs.seconds(len(rows), 0)
        kind = self._costs.kind(len(rows), self._shortest)
        drafting = self._costs.seconds(len(rows), self._shortest) * self._pace.of_kind(kind)
        extra = (drafting - plain) * STEPS_PER_CHOICE
        # As many as catch up within the time that the verifies take longer.
        probed = self._cheapest(rows, extra)
        extra += self._catch_up.seconds(sum([rows[index].lacking for index in probed]))
        if self._since_probe < extra / plain / _PROBE_SHARE:
            return [0] * len(rows)
        self._since_probe, self.stands_for = 0, STEPS_PER_CHOICE
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

    def _compare_priors(self, verified: Sequence[VerifiedRow]) -> None:
        """Learn which prior predicts rows better, from the first draft of some rows, others in each step."""
        every = 1 + len(verified) // _COMPARED_ROWS
        self._comparisons += 1
        if not self._most:
            return
        rows = [
            (row, accepted > 0) for row, drafted, accepted in verified[self._comparisons % every :: every] if drafted
        ]
        for prior in _ROW_PRIORS:
            surprise = 0.0
            for row, right in rows:
                rates = self._rates[row.kind]
                chance = min(0.99, max(0.01, rates.expected[0] * row.relative(prior * rates.overall)))
                surprise -= math.log(chance if right else 1 - chance)
            self._surprise[prior] = _SURPRISE_MEMORY ** len(rows) * self._surprise[prior] + surprise

    def _expect(self) -> None:
        """Expect drafts to be right at each position as often as all of the kind were, until the next choice."""
        for rates in self._rates:
            rates.expect()

    def _expected(self) -> list[Expected]:
        """What is expected from now on of each kind's rows, which begin with the prior that has predicted better."""
        self._expect()
        prior = min(_ROW_PRIORS, key=self._surprise.__getitem__)
        return [Expected(rates.expected, prior * rates.overall) for rates in self._rates]

    def _best(self, rows: DraftingRows) -> tuple[Offers, Floats, Ints]:
        """The best offer of each of the L draft lengths: tokens/s ([L]; 0 if no row drafts), and budgets ([L, R])."""
        costs, count = self._costs, len(rows)
        corrections = [self._pace.of_kind(costs.kind(count, longest)) for longest in costs.draft_lens]
        plain = count / costs.seconds(count, 0)
        another = [
            costs.of_another(count, longest) * correction if longest else 0.0
            for longest, correction in zip(costs.draft_lens, corrections, strict=True)
        ]
        prices = np.full(len(another), plain)
        together = max(1, int((rows.lacking > 0).sum()))
        alive = self._lens > 0
        for _ in range(2):  # the second price is closer to the best rate
            offers = Offers(self._lens, prices, np.array(another), self._catch_up, together)
            budgets, gained = offers.budgets(rows)
            drafts = np.where(gained > 0, budgets, 0)
            alive &= drafts.any(1)
            totals = zip(drafts.sum(1).tolist(), drafts.max(1).tolist(), strict=True)
            seconds = np.array([costs.of_drafts(count, total, most) for total, most in totals]) * corrections
            requests = np.where(gained > 0, (1 + gained) / rows.output, 0.0)
            seconds += self._catch_up.base * np.minimum(1.0, requests.sum(1))
            seconds += self._catch_up.a_token * (requests * rows.prompt).sum(1)
            prices = (count + gained.sum(1)) / seconds
        rates = np.where(alive, prices, 0.0)
        rates[0] = plain
        return offers, rates, np.where(alive[:, None], budgets, 0)
