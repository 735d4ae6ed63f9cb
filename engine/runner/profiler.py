"""``StepProfiler``: torch's profiler over the steps of a running engine, started and stopped on their thread."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from draftline.engine.errors import ProfilerError

PREFIX = "draftline."
"""Of the names that a trace has for the parts of steps."""

_NOT_RECORDED: AbstractContextManager[None] = nullcontext()


class StepProfiler:
    """At most one profile at a time."""

    def __init__(self) -> None:
        """Nothing is profiled."""
        self._profile: profile | None = None

    def part(self, name: str) -> AbstractContextManager[object]:
        """The trace shows the work within this context, and the GPU work that it launches, as a part of a step."""
        return _NOT_RECORDED if self._profile is None else record_function(PREFIX + name)

    def start(self) -> None:
        """Record this thread's work from now on, and the GPU work that it launches.

        Raises:
            ProfilerError: a profile is being recorded already.
        """
        if self._profile is not None:
            raise ProfilerError("the steps are being profiled already")
        gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        recording = profile(activities=[ProfilerActivity.CPU, *gpu])
        recording.start()
        self._profile = recording

    def stop(self, path: Path) -> None:
        """Stop recording, and write a Chrome trace to ``path``. Without a recording, do nothing."""
        recording, self._profile = self._profile, None
        if recording is not None:
            recording.stop()
            recording.export_chrome_trace(str(path))
