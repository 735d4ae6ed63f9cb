"""``Pace``: what slows all steps, what slows steps with drafts, and what prompts take."""

from __future__ import annotations

import pytest

from draftline.spec.step_costs import Pace


def known_pace(extra: float) -> Pace:
    """After phases of both kinds."""
    pace = Pace()
    for step in range(200):
        drafting = step // 20 % 2 == 1
        pace.observe(extra if drafting else 1.0, 1.0, kind=int(drafting))
    return pace


def test_drafts_that_take_longer_than_measured() -> None:
    assert Pace().of_kind(1) == 1.0
    for extra in (0.8, 1.0, 1.3, 4.0):
        assert known_pace(extra).of_kind(1) == pytest.approx(extra, rel=0.07)


def test_longer_histories_do_not_look_like_dear_drafts() -> None:
    """Nor shorter ones like cheap drafts, though no step without drafts shows which it is."""
    for change in (1.5, 1 / 1.5):
        pace = known_pace(1.2)
        for step in range(300):
            pace.observe(1.2 * change ** min(1.0, step / 100), 1.0, kind=1)
        assert pace.of_kind(1) == pytest.approx(1.2, rel=0.06)


def test_the_first_steps_with_drafts_tell_what_drafts_cost() -> None:
    pace = Pace()
    for _ in range(10):
        pace.observe(1.0, 1.0, kind=0)
    for _ in range(30):
        pace.observe(2.0, 1.0, kind=1)
    assert pace.of_kind(1) > 1.6


def test_an_error_of_one_kind_s_measurement_does_not_look_like_dear_drafts() -> None:
    """Some of it does, before another kind had a step, and some looks like longer histories."""
    pace = known_pace(1.0)
    for _ in range(200):
        pace.observe(1.3, 1.0, kind=4)
    assert pace.of_kind(4) > 1.15
    assert pace.of_kind(1) < 1.1
    for _ in range(200):
        pace.observe(1.0, 1.0, kind=1)
        pace.observe(1.3, 1.0, kind=4)
    assert [pace.of_kind(kind) for kind in (1, 4)] == pytest.approx([1.0, 1.3], rel=0.05)
    assert pace.of_kind(4) / pace.of_kind(1) == pytest.approx(1.3, rel=0.01)


def test_a_disturbed_step_counts_little() -> None:
    pace = known_pace(1.2)
    pace.observe(100.0, 1.0, kind=1)
    assert pace.of_kind(1) == pytest.approx(1.2, rel=0.03)


def test_a_step_that_took_no_time_by_a_coarse_clock() -> None:
    pace = known_pace(1.2)
    pace.observe(0.0, 1.0, kind=1)
    assert pace.of_kind(1) == pytest.approx(1.2, rel=0.03)


@pytest.mark.parametrize("prompt", [0.02, 0.3, 2.0])
def test_prompts_do_not_look_like_dear_drafts(prompt: float) -> None:
    """Nearly every step has some, and none was measured."""
    pace = Pace()
    for step in range(2000):
        drafting = step % 50 >= 5
        tokens = step * 7 % 5
        pace.observe((1.3 if drafting else 1.0) + prompt * tokens, 1.0, prompts=0.1 * tokens, kind=int(drafting))
    assert pace.of_kind(1) == pytest.approx(1.3, rel=0.05)


def test_the_step_after_another_kind_is_ignored() -> None:
    """The host still works for the one before."""
    pace = known_pace(1.2)
    before = pace.of_kind(1)
    for step in range(100):
        pace.observe(3.0, 1.0, kind=int(step % 2 == 1))
    assert pace.of_kind(1) == before
