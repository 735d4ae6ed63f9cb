"""The chosen drafts are faster than plain decoding and hardly slower than the best fixed number, or there are none."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from _pytest.mark import ParameterSet

from draftline.spec.adaptive import FEW_ROWS, STEPS_PER_CHOICE, DraftBudgets, DraftingRow, RowAcceptance
from draftline.spec.step_costs import NO_CATCH_UP, CatchUpCost, CostTable, RaggedCostTable

CHEAP = {(rows, drafts): 1.0 + 0.05 * drafts for rows in (1, 4) for drafts in range(5)}
EXPENSIVE = {(rows, drafts): 1.0 + 0.9 * drafts for rows in (64,) for drafts in range(5)}


def row(relative: float = 1.0, lacking: int = 0, remaining: float = 64) -> DraftingRow:
    return DraftingRow(RowAcceptance(relative * 1e6, 1e6), lacking, remaining)


def test_costs_between_two_row_counts_are_those_of_the_larger() -> None:
    costs = CostTable({(1, 0): 1.0, (8, 0): 2.0, (1, 2): 3.0, (8, 2): 4.0})
    assert costs.seconds(1, 0) == 1.0
    assert costs.seconds(2, 2) == 4.0
    assert costs.seconds(99, 2) == 4.0
    with pytest.raises(ValueError, match=r"missing for \(rows, drafts\) \(8, 2\)"):
        CostTable({(1, 0): 1.0, (8, 0): 2.0, (1, 2): 3.0})


def test_drafts_cost_nothing_where_they_are_padded_and_their_share_where_not() -> None:
    seconds = {(4, 0): 1.0, (4, 2): 1.8}
    assert (CostTable(seconds).of_drafts(4, 1, 1), CostTable(seconds).of_another(4, 2)) == (1.8, 0.0)
    ragged = RaggedCostTable(seconds)
    assert [ragged.of_drafts(4, *drafts) for drafts in ((0, 0), (4, 1), (4, 2), (8, 2))] == pytest.approx(
        [1.0, 1.4, 1.6, 1.8]
    )
    assert ragged.of_another(4, 2) == pytest.approx(0.1)


def test_the_cost_of_catching_up_runs_through_two_measurements() -> None:
    cost = CatchUpCost.through((10, 3.0), (30, 5.0))
    assert (cost.seconds(0), cost.seconds(10), cost.seconds(50)) == (0.0, pytest.approx(3.0), pytest.approx(7.0))
    assert CatchUpCost.through((10, 3.0), (30, 2.0)) == CatchUpCost(3.0, 0.0)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 0), (0.02, 0), (0.5, 3), (0.95, 4)])
def test_cheap_drafts_follow_the_acceptance_rate(rate: float, expected: int) -> None:
    [*_, chosen] = DraftBudgets(CostTable(CHEAP), prior=rate).choose([row()] * 3)
    assert (chosen > 0) == (expected > 0)
    assert abs(chosen - expected) <= 1


def test_expensive_drafts_need_a_high_acceptance_rate() -> None:
    assert not any(DraftBudgets(CostTable(EXPENSIVE), prior=0.6).choose([row()] * 64))
    assert all(DraftBudgets(CostTable(EXPENSIVE), prior=0.99).choose([row()] * 64))


def test_positions_that_are_not_padded_go_to_the_rows_that_need_them() -> None:
    seconds = {(4, drafts): 1.0 + 0.5 * drafts for drafts in range(5)}
    rows = [row(1.6), row(0.8), row(0.1), row(1.6)]
    first, second, third, fourth = DraftBudgets(RaggedCostTable(seconds), prior=0.6).choose(rows)
    assert first == fourth >= 2
    assert first > second
    assert third == 0


def test_a_row_catches_up_only_if_enough_of_it_remains() -> None:
    costs, catch_up = CostTable(CHEAP), CatchUpCost(2.0, 0.01)
    budgets = DraftBudgets(costs, catch_up, prior=0.6)
    follows, late, ending = budgets.choose([row(), row(1.0, 100, 200), row(1.0, 100, 3)])
    assert follows == late > 0
    assert ending == 0


@pytest.mark.parametrize("costs", [CHEAP, EXPENSIVE], ids=["cheap", "dear"])
def test_rejected_drafts_turn_speculation_off_except_for_cheap_probes(
    costs: dict[tuple[int, int], float],
) -> None:
    table = CostTable(costs)
    budgets = DraftBudgets(table, prior=0.8)
    rows = [DraftingRow(RowAcceptance()) for _ in range(4)]
    seconds = plain = 0.0
    for _ in range(5000):
        drafts = budgets.choose(rows)
        seconds += table.seconds(4, max(drafts))
        plain += table.seconds(4, 0)
        for one, wanted in zip(rows, drafts, strict=True):
            budgets.observe(one.acceptance, wanted, 0)
    assert seconds < 1.01 * plain


def test_a_probe_turns_speculation_on_again() -> None:
    budgets = DraftBudgets(CostTable(CHEAP), prior=0.0)
    one = DraftingRow(RowAcceptance())
    for _ in range(3000):
        [wanted] = budgets.choose([one])
        budgets.observe(one.acceptance, wanted, wanted)
        if wanted == 4:
            break
    assert wanted == 4


def test_a_probe_is_of_a_few_rows_that_lack_little() -> None:
    budgets = DraftBudgets(CostTable(EXPENSIVE), CatchUpCost(0.0, 1e-4), prior=0.0)
    rows = [row(1.0, lacking) for lacking in range(64)]
    probe = next(found for _ in range(100_000) if any(found := budgets.choose(rows)))
    assert probe == [1] * 8 + [0] * 56
    rows = [row(1.0, 0 if index % 4 else 50) for index in range(64)]
    probe = next(found for _ in range(100_000) if any(found := budgets.choose(rows)))
    assert [index for index, drafts in enumerate(probe) if drafts] == [1, 2, 3, 5, 6, 7, 9, 10]


def test_two_lengths_of_similar_value_do_not_alternate() -> None:
    budgets = DraftBudgets(CostTable({(1, 0): 1.0, (1, 1): 1.5, (1, 2): 1.87}))
    draw = random.Random(1)
    chosen = [budgets.choose([row(1 + 0.02 * draw.random())])[0] for _ in range(200)]
    assert sum(a != b for a, b in itertools.pairwise(chosen)) <= 4


def test_steps_that_take_longer_than_measured_end_drafting() -> None:
    """Costs were measured on a quiet machine; what a step with drafts really takes is three times as much."""
    table = CostTable(CHEAP)
    budgets = DraftBudgets(table, prior=0.6)
    one = DraftingRow(RowAcceptance())
    drafting = []
    for step in range(400):
        [wanted] = budgets.choose([one])
        drafting.append(wanted > 0)
        for index in range(min(wanted, 1)):
            budgets.observe(one.acceptance, 1, (step + index) % 5 < 3)
        # A rare disturbance counts for nothing.
        late = 2.8 if wanted else 100.0 if step % 50 == 0 else 1.0
        budgets.observe_step(1, wanted, wanted, table.seconds(1, wanted) * late)
    assert drafting[0]
    assert not any(drafting[200:240])


# A server under load, simulated: requests of 128 tokens arrive whenever one ends.

_SMOLLM2 = {1: 475, 2: 478, 4: 485, 5: 511, 8: 499, 16: 590, 40: 820, 64: 1031, 128: 1390, 256: 1927, 640: 4300}
_LLAMA_8B = {1: 4040, 5: 4165, 8: 4265, 16: 4330, 40: 4900, 64: 5655, 128: 7600, 256: 11827, 640: 27000}
_CPU = {1: 14_000, 2: 16_500, 4: 21_000, 8: 30_000, 16: 52_000, 40: 118_000}
"""Microseconds of a pass by its tokens: steps and verifies of docs/benchmarks.md and their likely course between."""

Course = dict[int, int]


def pass_seconds(course: Course, tokens: int) -> float:
    """Seconds of a pass of this many tokens, on a line between the measured ones."""
    known = sorted(course)
    right = min(max(1, bisect_left(known, tokens)), len(known) - 1)
    low, high = known[right - 1], known[right]
    share = (tokens - low) / (high - low)
    return (course[low] + share * (course[high] - course[low])) * 1e-6


@dataclass(frozen=True)
class Drafts:
    """A drafter: seconds of a round, of catching up, and its rates at each position, given those before."""

    first: float
    each: float
    rates: tuple[float, ...]
    catch_up: CatchUpCost = NO_CATCH_UP


DRAFTERS = {
    # smollm2-draft's and n-gram lookup's rates by position are those of models/drafts/smollm2/training.json.
    "n-gram, general": Drafts(8e-6, 0.0, (0.21, 0.70, 0.83, 0.85)),
    "n-gram, json": Drafts(8e-6, 0.0, (0.37, 0.70, 0.73, 0.88)),
    "draft model, general": Drafts(20e-6, 95e-6, (0.58, 0.65, 0.72, 0.78), CatchUpCost(1.6e-3, 4e-6)),
    "draft model, json": Drafts(20e-6, 95e-6, (0.75, 0.81, 0.71, 0.84), CatchUpCost(1.6e-3, 4e-6)),
    "parallel head": Drafts(120e-6, 2e-6, (0.68, 0.62, 0.6, 0.55), CatchUpCost(0.8e-3, 2e-6)),
    "never right": Drafts(120e-6, 2e-6, (0.0, 0.0, 0.0, 0.0), CatchUpCost(0.8e-3, 2e-6)),
    "always right": Drafts(120e-6, 2e-6, (1.0, 1.0, 1.0, 1.0), CatchUpCost(0.8e-3, 2e-6)),
}


@dataclass
class Simulated:
    """One request in its slot."""

    skill: float
    prompt: int
    length: int = 128
    decided: int = 0
    lacking: int = 0
    acceptance: RowAcceptance = field(default_factory=RowAcceptance)


Choose = Callable[[list[Simulated]], list[int]]


def served(
    drafter: Drafts,
    seconds: Callable[[list[int]], float],
    rows: int,
    choose: Choose,
    learn: DraftBudgets | None,
    unmeasured: int = 400,
) -> float:
    """tokens/s of ``rows`` requests at once, without those of the first steps."""
    draw = random.Random(rows)

    def arrive() -> Simulated:
        prompt = draw.randint(30, 300)
        return Simulated(draw.uniform(0.6, 1.3), prompt, lacking=prompt)

    slots = [arrive() for _ in range(rows)]
    for index, slot in enumerate(slots):
        slot.decided = index * 128 // rows
    tokens, time, steps = 0, 0.0, max(800, 8_000 // rows)
    budgets, arrived = [0] * rows, False
    for step in range(steps + unmeasured):
        if step == unmeasured:
            tokens, time = 0, 0.0
        if step % STEPS_PER_CHOICE == 0 or (rows <= FEW_ROWS and arrived):
            budgets = choose(slots)
        arrived = False
        late = [slot.lacking for slot, budget in zip(slots, budgets, strict=True) if budget]
        time += seconds(budgets) + drafter.catch_up.seconds(sum(late))
        for index, (slot, budget) in enumerate(zip(slots, budgets, strict=True)):
            accepted = 0
            while accepted < budget and draw.random() < min(1.0, drafter.rates[accepted] * slot.skill):
                accepted += 1
            slot.lacking = 0 if budget else slot.lacking + 1
            slot.decided += accepted + 1
            tokens += accepted + 1
            if budget and learn is not None:
                learn.observe(slot.acceptance, budget, accepted)
            if slot.decided >= slot.length:
                slots[index], budgets[index], arrived = arrive(), 0, True
    return tokens / time


_COURSES: dict[str, tuple[Course, int, bool]] = {
    **{f"smollm2-{rows}": (_SMOLLM2, rows, False) for rows in (1, 4, 8, 16, 64, 128)},
    **{f"8b-{rows}": (_LLAMA_8B, rows, False) for rows in (1, 8, 64)},
    **{f"cpu-{rows}": (_CPU, rows, True) for rows in (1, 2, 8)},
}


def _cases() -> list[ParameterSet]:
    """Every drafter on every course; by default a third of them, in which each drafter and each course are."""
    grid = itertools.product(enumerate(_COURSES.items()), enumerate(DRAFTERS))
    return [
        pytest.param(drafter, *what, id=f"{course}-{drafter}", marks=[pytest.mark.slow] * ((row + column) % 3 > 0))
        for (row, (course, what)), (column, drafter) in grid
    ]


@pytest.mark.parametrize(("name", "course", "rows", "ragged"), _cases())
def test_served_speed_is_that_of_the_best_fixed_number(name: str, course: Course, rows: int, ragged: bool) -> None:
    """At least 0.98 of plain decoding, whatever the drafter, and close to the best number of drafts that is fixed."""
    drafter = DRAFTERS[name]
    scale = course[1] / _SMOLLM2[1]

    def round_seconds(longest: int) -> float:
        return (drafter.first + drafter.each * longest) * scale * (longest > 0)

    def seconds(budgets: list[int]) -> float:
        longest = max(budgets)
        tokens = rows + sum(budgets) if ragged else rows * (1 + longest)
        return pass_seconds(course, tokens) + round_seconds(longest)

    scaled = Drafts(
        drafter.first * scale,
        drafter.each * scale,
        drafter.rates,
        CatchUpCost(drafter.catch_up.base * scale, drafter.catch_up.a_token * scale),
    )
    table = {(rows, drafts): seconds([drafts] * rows) for drafts in range(5)}
    learning = DraftBudgets((RaggedCostTable if ragged else CostTable)(table), scaled.catch_up)

    def adaptive(slots: list[Simulated]) -> list[int]:
        return learning.choose(
            [DraftingRow(s.acceptance, s.lacking, s.length - s.decided, s.prompt, 128) for s in slots]
        )

    fixed = [
        served(scaled, seconds, rows, lambda slots, drafts=drafts: [drafts] * len(slots), None)  # type: ignore[misc]
        for drafts in range(5)
    ]
    got = served(scaled, seconds, rows, adaptive, learning)
    assert got >= 0.98 * fixed[0]
    assert got >= 0.94 * max(fixed)
