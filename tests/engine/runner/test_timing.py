"""When the parts of a step begin and end."""

from __future__ import annotations

import torch

from draftline.engine.runner.timing import DRAFTS, END, FORWARD, SAMPLING, StepClock, step_times
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
