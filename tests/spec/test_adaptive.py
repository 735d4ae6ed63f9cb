"""The chosen drafts follow acceptance, costs and catching up."""

from __future__ import annotations

import itertools
import pickle
import random

import pytest

from draftline.spec.acceptance_rates import DRAWN, GREEDY
from draftline.spec.adaptive import STEPS_PER_CHOICE, DraftBudgets
from draftline.spec.offers import DraftingRow, RowAcceptance
from draftline.spec.step_costs import CatchUpCost, CostTable, RaggedCostTable

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
    for _ in range(1500):  # the share of probes is the same after 500 as after 5,000
        drafts = budgets.choose(rows)
        seconds += table.seconds(4, max(drafts))
        plain += table.seconds(4, 0)
        for one, wanted in zip(rows, drafts, strict=True):
            budgets.observe([(one.acceptance, wanted, 0)])
    assert seconds < 1.015 * plain


def test_greedy_and_drawn_tokens_have_rates_of_their_own() -> None:
    budgets = DraftBudgets(RaggedCostTable({(2, drafts): 1.0 + 0.2 * drafts for drafts in range(5)}))
    for _ in range(100):
        budgets.observe([(RowAcceptance(kind=GREEDY), 4, 4), (RowAcceptance(kind=DRAWN), 4, 0)])
    greedy, drawn = (DraftingRow(RowAcceptance(kind=kind)) for kind in (GREEDY, DRAWN))
    assert budgets.choose([greedy, drawn]) == [4, 0]
    assert [budgets.join(greedy), budgets.join(drawn)] == [4, 0], "they come later"


def test_a_step_of_a_thousand_rows_is_learned_from() -> None:
    budgets = DraftBudgets(CostTable(CHEAP), prior=0.99)
    rows = [row() for _ in range(1000)]
    assert max(budgets.choose(rows)) > 0
    for _ in range(3):
        budgets.observe([(one.acceptance, 4, 0) for one in rows])
    assert not any(budgets.choose(rows))


def test_drafts_that_are_always_right_have_no_rate_above_one() -> None:
    for first, second in itertools.product(range(1, 33), repeat=2):
        budgets = DraftBudgets(CostTable(CHEAP), prior=1.0)
        for rows in (first, second):
            budgets.observe([(RowAcceptance(), 4, 4)] * rows)
        assert budgets.choose([row()]) == [4]


def test_drafting_goes_on_after_any_number_of_probes_and_remembers_no_more() -> None:
    budgets, rows = DraftBudgets(CostTable(CHEAP), prior=0.99), [row()]

    def kept_after(probes: int) -> int:
        while probes:
            probes -= not any(budgets.choose(rows, 10_000))
        return len(pickle.dumps(budgets))

    assert kept_after(3000) <= kept_after(3) + 64


def test_a_probe_turns_speculation_on_again() -> None:
    budgets = DraftBudgets(CostTable(CHEAP), prior=0.0)
    one = DraftingRow(RowAcceptance())
    for _ in range(3000):
        [wanted] = budgets.choose([one])
        budgets.observe([(one.acceptance, wanted, wanted)])
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
            budgets.observe([(one.acceptance, 1, (step + index) % 5 < 3)])
        # A rare disturbance counts for nothing.
        late = 2.8 if wanted else 100.0 if step % 50 == 0 else 1.0
        budgets.observe_step(1, wanted, wanted, table.seconds(1, wanted) * late)
    assert drafting[0]
    assert not any(drafting[200:240])


def test_a_length_that_was_measured_too_short_is_given_up() -> None:
    """Four drafts seem to cost as much as one. They are not worth what they take, and two are."""
    measured = CostTable({(1, 0): 1.0, (1, 1): 1.15, (1, 2): 1.25, (1, 4): 1.2})
    takes = {0: 1.0, 1: 1.15, 2: 1.25, 4: 1.9}
    budgets = DraftBudgets(measured, prior=0.6)
    one = DraftingRow(RowAcceptance())
    chosen = []
    for step in range(600):
        [wanted] = budgets.choose([one])
        chosen.append(wanted)
        if wanted:
            right = min(wanted, [0, 1, 3, 0, 1, 2, 4, 0, 1, 2][step * 7 % 10])
            budgets.observe([(one.acceptance, wanted, right)])
        for _ in range(4):
            budgets.observe_step(1, wanted, wanted, takes[wanted])
    assert 4 in chosen
    assert sum(wanted == 2 for wanted in chosen[-200:]) > 180


def test_a_length_that_was_measured_too_long_is_tried() -> None:
    """Two drafts seem to cost as much as four. They are worth more than one and four, which rare probes show."""
    measured = CostTable({(1, 0): 1.0, (1, 1): 1.15, (1, 2): 1.6, (1, 4): 1.7})
    takes = {0: 1.0, 1: 1.15, 2: 1.25, 4: 1.7}
    budgets = DraftBudgets(measured, prior=0.6)
    one = DraftingRow(RowAcceptance())
    left, wanted, chosen = 0, 0, []
    for step in range(12_000):
        if not left:
            [wanted] = budgets.choose([one])
            left = budgets.stands_for
        left -= 1
        chosen.append(wanted)
        if wanted:
            right = min(wanted, [0, 1, 3, 0, 1, 2, 4, 0, 1, 2][step * 7 % 10])
            budgets.observe([(one.acceptance, wanted, right)])
        budgets.observe_step(1, wanted, wanted, takes[wanted])
    assert 2 not in chosen[:50]
    assert sum(wanted == 2 for wanted in chosen[-4000:]) > 0.97 * 4000


def test_drafts_that_become_dear_end() -> None:
    """Steps with drafts tell what they take together with all others; only steps without drafts tell the two apart."""
    table = CostTable(CHEAP)
    budgets = DraftBudgets(table, prior=0.6)
    one = DraftingRow(RowAcceptance())
    wanted, left, drafting = 0, 0, []
    for step in range(12_000):
        if not left:
            [wanted] = budgets.choose([one])
            left = budgets.stands_for
        left -= 1
        drafting.append(wanted > 0)
        for _ in range(min(wanted, 1)):
            budgets.observe([(one.acceptance, 1, step % 5 < 3)])
        busy = step > 4000
        seconds = table.seconds(1, wanted) * (3.3 if busy and wanted else 1.1 if busy else 1.0)
        budgets.observe_step(1, wanted, wanted, seconds)
    assert sum(drafting[200:4000]) > 0.985 * 3800, "what it takes to know is a hundredth of the steps"
    assert sum(drafting[9000:]) < 0.05 * 3000


def test_only_probes_of_drafts_explore() -> None:
    hopeless = DraftBudgets(CostTable(EXPENSIVE), prior=0.0)
    while not any(hopeless.choose([row()])):
        pass
    assert hopeless.exploring
    good = DraftBudgets(CostTable(CHEAP), prior=0.8)
    while any(good.choose([row()])):
        assert not good.exploring
    assert not good.exploring, "a probe without drafts explores none"


def test_a_row_that_comes_during_a_probe_without_drafts_has_none() -> None:
    budgets = DraftBudgets(CostTable(CHEAP), prior=0.8)
    while any(budgets.choose([row()])):
        assert budgets.join(row()) != 0
    assert budgets.stands_for == STEPS_PER_CHOICE
    assert budgets.join(row()) == 0
    assert any(budgets.choose([row()]))


def test_rows_that_come_later_follow_the_standing_choice() -> None:
    budgets = DraftBudgets(RaggedCostTable(CHEAP), prior=0.8)
    assert budgets.join(row()) == 0  # nothing is chosen yet
    chosen = budgets.choose([row(), row(), row(0.0)])
    assert chosen[0] == chosen[1] > 0 == chosen[2]
    assert [budgets.join(row(0.0)), budgets.join(row())] == [0, chosen[0]]
    assert budgets.choose([]) == []
    assert budgets.join(row()) == chosen[0], "all have ended, and the next request comes"
