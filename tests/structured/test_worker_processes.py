"""Workers end without a word when the process that started them does, whatever they are doing."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import wait_until

from draftline.structured.worker_processes import WorkerProcesses

SETUP, JOB = pickle.dumps("setup"), pickle.dumps("job" * 100_000)


@pytest.mark.parametrize(
    "sent",
    [b"", SETUP[:-3], SETUP, SETUP + JOB[:-3], SETUP + JOB, SETUP + JOB + JOB],
    ids=["before its setup", "half a setup", "idle", "half a job", "with an answer", "with two answers"],
)
def test_a_worker_whose_parent_has_gone_says_nothing(sent: bytes) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "echo_worker", str(1 << 30)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdout.close()  # while it starts
    _, said = worker.communicate(sent)
    assert (worker.returncode, said) == (0, b"")


def test_a_terminals_interrupt_does_not_reach_a_worker() -> None:
    workers = WorkerProcesses("echo_worker", "setup")
    process, _ = workers.take()
    assert os.getpgid(process.pid) != os.getpgid(0)
    workers.give_back(process)
    workers.close()
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(RuntimeError, match="closed"):
        workers.take()


def test_a_worker_answers_and_is_used_again() -> None:
    workers = WorkerProcesses("echo_worker", "setup")
    assert workers.answers(1) == ([("setup", 1)], None)
    again, used = workers.take()
    assert used
    workers.give_back(again)
    assert workers.answers(2) == ([("setup", 2)], None)
    workers.close()


def test_an_idle_worker_that_ends_is_no_zombie() -> None:
    workers = WorkerProcesses("echo_worker", "setup")
    process, _ = workers.take()
    workers.give_back(process)
    process.send_signal(signal.SIGALRM)  # as its own timer does
    wait_until(lambda: not Path(f"/proc/{process.pid}").exists())
    assert workers.answers(1) == ([("setup", 1)], None)
    workers.close()


def test_the_pipes_of_a_job_in_flight_are_closed_when_it_ends() -> None:
    """Where workers are closed meanwhile, its thread reads the pipe's end; it would fail in many ways if it read a closed one."""
    workers = WorkerProcesses("echo_worker", "setup")
    process, _ = workers.take()
    assert process.stdin is not None
    assert process.stdout is not None
    workers.close()
    assert process.returncode == -signal.SIGKILL
    assert not process.stdin.closed
    assert process.stdout.read() == b""
    workers.give_back(process)
    assert process.stdin.closed
    assert process.stdout.closed
