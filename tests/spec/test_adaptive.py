"""The chosen draft length is faster than plain decoding, or 0."""

from __future__ import annotations

import itertools
import random

import pytest

from draftline.spec.adaptive import AcceptanceEstimate, CostTable, DraftLengths, expected_tokens

CHEAP = {(rows, drafts): 1.0 + 0.05 * drafts for rows in (1, 4) for drafts in range(5)}
EXPENSIVE = {(rows, drafts): 1.0 + 0.9 * drafts for rows in (64,) for drafts in range(5)}


def test_expected_tokens_are_those_of_independent_drafts() -> None:
    draw = random.Random(0)
    for rate in (0.0, 0.3, 0.9):
        total = 0
        for _ in range(20_000):
            accepted = 0
            while accepted < 3 and draw.random() < rate:
                accepted += 1
            total += accepted + 1
        assert expected_tokens(rate, 3) == pytest.approx(total / 20_000, rel=0.02)
    assert expected_tokens(1.0, 3) == 4


def test_costs_between_two_row_counts_are_those_of_the_larger() -> None:
    costs = CostTable({(1, 0): 1.0, (8, 0): 2.0, (1, 2): 3.0, (8, 2): 4.0})
    assert costs.seconds(1, 0) == 1.0
    assert costs.seconds(2, 2) == 4.0
    assert costs.seconds(99, 2) == 4.0
    with pytest.raises(ValueError, match=r"missing for \(rows, drafts\) \(8, 2\)"):
        CostTable({(1, 0): 1.0, (8, 0): 2.0, (1, 2): 3.0})


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 0), (0.02, 0), (0.5, 3), (0.95, 4)])
def test_cheap_drafts_follow_the_acceptance_rate(rate: float, expected: int) -> None:
    lengths = DraftLengths(CostTable(CHEAP), prior=rate)
    chosen = lengths.choose([AcceptanceEstimate(rate)] * 3)
    assert (chosen > 0) == (expected > 0)
    assert abs(chosen - expected) <= 1


def test_expensive_drafts_need_a_high_acceptance_rate() -> None:
    assert DraftLengths(CostTable(EXPENSIVE), prior=0.6).choose([AcceptanceEstimate(0.6)] * 64) == 0
    assert DraftLengths(CostTable(EXPENSIVE), prior=0.99).choose([AcceptanceEstimate(0.99)] * 64) > 0


@pytest.mark.parametrize("costs", [CHEAP, EXPENSIVE], ids=["cheap", "dear"])
def test_rejected_drafts_turn_speculation_off_except_for_cheap_probes(
    costs: dict[tuple[int, int], float],
) -> None:
    table = CostTable(costs)
    lengths = DraftLengths(table, prior=0.8)
    rows = [lengths.new_estimate() for _ in range(4)]
    seconds = plain = 0.0
    for _ in range(5000):
        drafts = lengths.choose(rows)
        seconds += table.seconds(4, drafts)
        plain += table.seconds(4, 0)
        for row in rows:
            if wanted := lengths.drafts_for(row, drafts):
                lengths.observe(row, wanted, 0)
    assert seconds < 1.01 * plain


def test_a_probe_turns_speculation_on_again() -> None:
    lengths = DraftLengths(CostTable(CHEAP), prior=0.0)
    row = lengths.new_estimate()
    for _ in range(3000):
        drafts = lengths.choose([row])
        if wanted := lengths.drafts_for(row, drafts):
            lengths.observe(row, wanted, wanted)
        if drafts == 4:
            break
    assert drafts == 4


def test_two_lengths_of_similar_value_do_not_alternate() -> None:
    costs = {(1, 0): 1.0, (1, 1): 1.5, (1, 2): 1.87}
    lengths = DraftLengths(CostTable(costs))
    draw = random.Random(1)
    chosen = [lengths.choose([AcceptanceEstimate(0.5 + 0.01 * draw.random())]) for _ in range(200)]
    assert sum(a != b for a, b in itertools.pairwise(chosen)) <= 4
