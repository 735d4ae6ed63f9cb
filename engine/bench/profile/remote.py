"""``phase_of_server``: the profile of a running server as a result, from its trace and its metrics before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftline.engine.bench.counts import Number, peak_of, work_of
from draftline.engine.bench.profile.steps import Phase
from draftline.engine.bench.profile.trace import TraceSummary


def phase_of_server(trace: Path, before: Number, after: Number) -> dict[str, Any]:
    """The fields of a result.

    Args:
        trace: the trace that the server has written.
        before: its metrics before the profile.
        after: its metrics after it.

    Raises:
        UsageError: no step ran meanwhile.
    """
    phase = Phase(
        "server", int(after("running_sequences")), work_of(after) - work_of(before), TraceSummary.read(trace), trace
    )
    return phase.fields(peak_of(after))
