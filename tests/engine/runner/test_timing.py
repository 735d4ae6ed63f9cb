"""When the parts of a step begin and end."""

from __future__ import annotations

import torch

from draftline.engine.runner.timing import DRAFTS, END, FORWARD, SAMPLING, StepClock, StepDurations, step_times
from draftline.engine.stats import StepTimes
from draftline.kernels.reference.ops import ReferenceOps


def test_parts_take_the_time_from_one_moment_to_the_next() -> None:
    moments = torch.tensor([5_000_000_000, 5_125_000_000, 5_375_000_000, 5_875_000_000])
    assert step_times(moments, host_s=2.0) == StepTimes(0.125, 0.25, 0.5, 2.0)


def test_moments_follow_each_other_and_stay_as_they_were_read() -> None:
    clock = StepClock.of(ReferenceOps(), torch.device("cpu"))
    for moment in (DRAFTS, FORWARD, SAMPLING, END):
        clock.note(moment)
    first = clock.read()
    assert 0 < first[DRAFTS] <= first[FORWARD] <= first[SAMPLING] <= first[END]
    kept = first.tolist()
    clock.note(DRAFTS)
    assert first.tolist() == kept
    assert clock.read()[DRAFTS] >= first[END]


def test_a_step_that_was_launched_ahead_takes_the_time_from_the_end_of_the_one_before() -> None:
    """Seconds by the host's clock, nanoseconds by the device's, which began elsewhere."""
    durations = StepDurations()
    assert durations.of(started=10.0, arrived=10.5, ended=500_000_000) == 0.5, "the first one"
    # The host sees this step's end 0.3 s late. So the next one would seem to take 0.2 s.
    assert durations.of(started=10.2, arrived=11.3, ended=1_000_000_000) == 0.5
    assert durations.of(started=10.6, arrived=11.5, ended=1_500_000_000) == 0.5


def test_a_step_of_an_idle_device_takes_the_time_from_its_launch() -> None:
    durations = StepDurations()
    durations.of(started=1.0, arrived=1.5, ended=0)
    assert durations.of(started=7.0, arrived=7.25, ended=5_750_000_000) == 0.25


def test_the_host_times_steps_whose_end_the_device_does_not_tell() -> None:
    durations = StepDurations()
    durations.of(started=1.0, arrived=2.0, ended=0)
    assert durations.of(started=1.5, arrived=3.0, ended=None) == 1.0
    assert durations.of(started=2.5, arrived=3.5, ended=900_000_000) == 0.5, "nor that of the one before"
    assert durations.of(started=3.25, arrived=5.0, ended=1_000_000_000) == 0.1


def test_the_device_waits_for_a_capture_and_the_step_after_it_seems_no_longer() -> None:
    """A capture of 7 s in the launch of a step of 0.25 s, which the host sees in time."""
    durations = StepDurations()
    durations.of(started=1.0, arrived=9.0, ended=500_000_000)
    assert durations.of(started=8.5, arrived=9.25, ended=8_250_000_000, captured=True) == 0.25
    assert durations.of(started=9.0, arrived=10.0, ended=8_500_000_000) == 0.25
