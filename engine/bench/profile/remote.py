"""``phase_of_server``: the profile of a running server as a result, from its trace and from two looks at its metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftline.engine.bench.profile.steps import Phase
from draftline.engine.bench.profile.trace import TraceSummary
from draftline.engine.stats import DevicePeak, WorkCounts

Number = Callable[[str], float]
"""Reads a metric by its name, without the common prefix; 0 where there is none."""


def work_of(metrics: Number) -> WorkCounts:
    """The steps that a server's metrics count."""
    counts = (metrics(name) for name in ("step_seconds", "model_flops", "model_bytes"))
    return WorkCounts(int(metrics("steps")), *counts)


def phase_of_server(trace: Path, before: Number, after: Number) -> dict[str, Any]:
    """The fields of a result.

    Args:
        trace: the trace that the server has written.
        before: its metrics before the profile.
        after: its metrics after it.

    Raises:
        UsageError: no step ran meanwhile.
    """
    peak = None
    if after("peak_flops_per_second"):
        peak = DevicePeak(after("peak_flops_per_second"), after("peak_bytes_per_second"))
    phase = Phase(
        "server", int(after("running_sequences")), work_of(after) - work_of(before), TraceSummary.read(trace), trace
    )
    return phase.fields(peak)
