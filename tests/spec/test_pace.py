"""``Pace``: what slows all steps, and what slows steps with drafts."""

from __future__ import annotations

import pytest

from draftline.spec.step_costs import Pace


def known_pace(extra: float) -> Pace:
    """After phases of both kinds."""
    pace = Pace()
    for step in range(200):
        drafting = step // 20 % 2 == 1
        pace.observe(extra if drafting else 1.0, drafting=drafting)
    return pace


def test_drafts_that_take_longer_than_measured() -> None:
    assert Pace().with_drafts == 1.0
    for extra in (0.8, 1.0, 1.3, 4.0):
        assert known_pace(extra).with_drafts == pytest.approx(extra, rel=0.05)


def test_longer_histories_do_not_look_like_dear_drafts() -> None:
    """Nor shorter ones like cheap drafts, though no step without drafts shows which it is."""
    for change in (1.5, 1 / 1.5):
        pace = known_pace(1.2)
        for step in range(300):
            pace.observe(1.2 * change ** min(1.0, step / 100), drafting=True)
        assert pace.with_drafts == pytest.approx(1.2, rel=0.06)


def test_the_first_steps_with_drafts_tell_what_drafts_cost() -> None:
    pace = Pace()
    for _ in range(10):
        pace.observe(1.0, drafting=False)
    for _ in range(30):
        pace.observe(2.0, drafting=True)
    assert pace.with_drafts > 1.6


def test_a_disturbed_step_counts_little() -> None:
    pace = known_pace(1.2)
    pace.observe(100.0, drafting=True)
    assert pace.with_drafts == pytest.approx(1.2, rel=0.03)


def test_a_step_that_took_no_time_by_a_coarse_clock() -> None:
    pace = known_pace(1.2)
    pace.observe(0.0, drafting=True)
    assert pace.with_drafts == pytest.approx(1.2, rel=0.03)
