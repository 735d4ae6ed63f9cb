"""The processor time that compiling takes, in this process and in its workers."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path

from typing_extensions import override

from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.job_queue import QueuedJob


class BeginningCompiler(ConstraintCompiler):
    """Builds no tables behind the first outputs."""

    @override
    def _do_later(self, work: Callable[[QueuedJob[object]], object]) -> bool:
        return True


def processor_s() -> float:
    """Of this process and its children, since each began."""
    children = [child for task in Path("/proc/self/task").iterdir() for child in _children(task)]
    over = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Linux numbers the clock of a process's processor time so (clock_getcpuclockid).
    running = sum(time.clock_gettime((~child << 3) | 2) for child in children)
    return time.process_time() + running + over.ru_utime + over.ru_stime


def _children(task: Path) -> list[int]:
    try:
        return [int(child) for child in (task / "children").read_text().split()]
    except FileNotFoundError:  # the thread has ended
        return []
