"""``work_of`` and ``peak_of``: what a server's metrics say of its steps and of its device."""

from __future__ import annotations

from collections.abc import Callable

from draftline.engine.stats import DevicePeak, WorkCounts

Number = Callable[[str], float]
"""Reads a metric by its name, without the common prefix; 0 where there is none."""


def work_of(metrics: Number) -> WorkCounts:
    """The steps that a server's metrics count."""
    counts = (metrics(name) for name in ("step_seconds", "model_flops", "model_bytes"))
    return WorkCounts(int(metrics("steps")), *counts)


def peak_of(metrics: Number) -> DevicePeak | None:
    """The peak rates of a server's device; None where they are not known."""
    flops, traffic = metrics("peak_flops_per_second"), metrics("peak_bytes_per_second")
    return DevicePeak(flops, traffic) if flops else None
