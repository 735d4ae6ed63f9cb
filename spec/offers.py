"""``Offers``: the drafts that are worth it for each row, where a second is worth some tokens.

Arithmetic on arrays only.

A position is worth its cost if its draft survives with a probability above the price times its seconds. A row catches
up if that is worth it for the tokens that it probably still decides. Several lengths are looked at together: a step may
have hundreds of rows, and the host has about a millisecond for all of its work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from draftline.spec.acceptance_rates import GREEDY
from draftline.spec.step_costs import CatchUpCost

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_SURELY = 0.995
"""No draft is more certain than this."""


class Expected(NamedTuple):
    """What is expected of the rows of a kind.

    Attributes:
        rates: [K], the acceptance rates at each position (chain rule).
        prior: the number of accepted drafts that a row's own rate begins with; see `RowAcceptance.relative`.
    """

    rates: Sequence[float]
    prior: float


@dataclass(slots=True)
class RowAcceptance:
    """How a row's drafts fare, compared with those of all rows of its kind at the same positions.

    Attributes:
        accepted: its accepted drafts, where older ones count less.
        expected: how many were to be expected.
        drafts: how many there were.
        kind: the row's, `draftline.spec.acceptance_rates.GREEDY` or DRAWN.
    """

    accepted: float = 0.0
    expected: float = 0.0
    drafts: float = 0.0
    kind: int = GREEDY

    def relative(self, prior: float) -> float:
        """Its acceptance rate, as a factor of that of all rows; it begins with ``prior`` drafts that were accepted."""
        return (self.accepted + prior) / (self.expected + prior) if prior else 1.0

    def observe(self, accepted: float, expected: float, drafts: float, memory: float) -> None:
        """Learn from more drafts, of which older ones count less; those until now count ``memory`` times as much."""
        self.accepted = memory * self.accepted + accepted
        self.expected = memory * self.expected + expected
        self.drafts = memory * self.drafts + drafts

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
class DraftingRows:
    """The same of R rows, as arrays.

    Attributes:
        survival: [R, K + 1], the probability that all drafts up to each position are accepted; 1 before the first.
        gains: [R, K + 1], the tokens that so many drafts gain.
        lacking: [R].
        remaining: [R], at least 1.
        prompt: [R].
        output: [R].
    """

    survival: Floats
    gains: Floats
    lacking: Floats
    remaining: Floats
    prompt: Floats
    output: Floats

    @staticmethod
    def of(rows: Sequence[DraftingRow], expected: Sequence[Expected]) -> DraftingRows:
        """The arrays of some rows, at least one. ``expected`` has what is expected of each kind."""
        relative = np.array([row.acceptance.relative(expected[row.acceptance.kind].prior) for row in rows])
        rates = np.array([each.rates for each in expected])[[row.acceptance.kind for row in rows]]
        survival = np.ones((len(rows), rates.shape[1] + 1))
        np.cumprod(np.minimum(_SURELY, relative[:, None] * rates), axis=1, out=survival[:, 1:])
        gains = np.zeros_like(survival)
        np.cumsum(survival[:, 1:], axis=1, out=gains[:, 1:])
        lacking, remaining, prompt, output = np.array(
            [(row.lacking, row.remaining, row.prompt, row.output) for row in rows], np.float64
        ).T
        return DraftingRows(survival, gains, lacking, np.maximum(1.0, remaining), prompt, output)

    def __len__(self) -> int:
        return len(self.lacking)


@dataclass(frozen=True, slots=True)
class Offers:
    """L offers: drafts of at most so many tokens a row.

    Attributes:
        longest: [L], the most drafts of a row.
        prices: [L], the tokens that a second is worth.
        another: [L], seconds of one draft more in a step.
        catch_up: seconds of catching up.
        together: rows that catch up at the same time.
    """

    longest: Ints
    prices: Floats
    another: Floats
    catch_up: CatchUpCost
    together: int

    def budgets(self, rows: DraftingRows) -> tuple[Ints, Floats]:
        """[L, R]: the drafts that are worth it for each row at present, and the tokens that they are to gain."""
        prices, another = self.prices[:, None], (self.prices * self.another)[:, None]
        held = (rows.survival[:, 1:] >= another[:, :, None]).sum(2)
        wanted = np.minimum(held, self.longest[:, None])
        gained = rows.gains[np.arange(len(rows)), wanted]
        worth = gained - another * wanted
        # In the long run, the row catches up with the prompts of all requests to come.
        steady = self.catch_up.a_token * rows.prompt / rows.output
        # At present, it may have tokens to catch up with, as other rows have at the same time.
        late = (
            (self.catch_up.base / self.together + self.catch_up.a_token * rows.lacking)
            * (rows.lacking > 0)
            / rows.remaining
        )
        tokens = prices * (1 + gained)
        budgets = np.where(worth > tokens * np.maximum(late, steady), wanted, 0)
        return budgets, np.where(worth > tokens * steady, gained, 0.0)

    def budget(self, row: DraftingRow, expected: Sequence[Expected]) -> int:
        """What `budgets` of a single offer has for one row. ``expected`` is that of `DraftingRows.of`.

        Arrays of so few rows would take the host several times as long.
        """
        rates, prior = expected[row.acceptance.kind]
        price, another = float(self.prices[0]), float(self.prices[0] * self.another[0])
        relative, survival, gained, wanted = row.acceptance.relative(prior), 1.0, 0.0, 0
        for rate in rates[: self.longest[0]]:
            survival *= min(_SURELY, relative * rate)
            if survival < another:
                break
            gained += survival
            wanted += 1
        late = 0.0
        if row.lacking:
            late = (self.catch_up.base / self.together + self.catch_up.a_token * row.lacking) / max(1.0, row.remaining)
        catching_up = max(late, self.catch_up.a_token * row.prompt / row.output)
        return wanted if gained - another * wanted > price * (1 + gained) * catching_up else 0

    def one(self, index: int) -> Offers:
        """A single one of them."""
        part = slice(index, index + 1)
        return Offers(self.longest[part], self.prices[part], self.another[part], self.catch_up, self.together)
