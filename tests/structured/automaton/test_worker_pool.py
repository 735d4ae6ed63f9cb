"""A job whose worker dies is rejected, with what the way it died says of the reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from small_vocabulary import vocabulary

from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.automaton.worker_pool import AutomatonWorkerPool
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.worker_processes import ALARMS, WorkerProcesses


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        *[(-alarm, "takes longer than 3 s") for alarm in ALARMS],
        (-signal.SIGSEGV, "overflows the compiler's stack"),
        (1, "failed with status 1: standard error has its traceback"),
        (-signal.SIGABRT, r"takes more than 64 MiB of memory \(the compiler ended with -6\)"),
        (-signal.SIGKILL, r"takes more than 64 MiB of memory \(the compiler ended with -9\)"),
    ],
)
def test_the_reason_of_a_workers_death(status: int, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def died(*_: Any) -> tuple[list[Any], int]:
        return [], status

    monkeypatch.setattr(WorkerProcesses, "answers", died)
    pool = AutomatonWorkerPool(vocabulary("a"), AutomatonLimits(seconds=3, memory_bytes=64 << 20))
    with pytest.raises(InvalidConstraintError, match=reason):
        pool.compile(object())  # type: ignore[arg-type]
    pool.close()


LIMITED = """
import resource

from small_vocabulary import vocabulary

from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.automaton.worker_pool import AutomatonWorkerPool
from draftline.structured.constraint import ConstraintSpec

resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
pool = AutomatonWorkerPool(vocabulary("a"), AutomatonLimits(memory_bytes=9 << 30))
pool.compile(ConstraintSpec("regex", "a"))
pool.close()
"""


def test_a_worker_runs_in_less_memory_than_its_limit() -> None:
    """As under ``ulimit -v``: a process cannot raise the limit that it inherits, and every constraint failed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", LIMITED], check=False, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
