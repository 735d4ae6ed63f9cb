"""``WorkerProcesses``: processes for long work of untrusted size, at the lowest priority, one job each at a time.

They start on demand, are replaced when they die, and end by themselves when they hold much memory or have been idle for
long. A process reads jobs from standard input and writes answers to standard output, both pickled; the first message is
its setup. This module is both ends: a worker's ``main`` calls `serve`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, MutableSequence
from collections.abc import Set as AbstractSet
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from draftline.structured.errors import ClosedError

WorkerProcess = subprocess.Popen[bytes]

_SetupT = TypeVar("_SetupT")

_NICE = 19
"""The priority of workers: streams come first."""

ALARMS = (signal.SIGPROF, signal.SIGALRM)
"""The signals with which a worker ends a job of its own that takes too long."""

_IDLE_S = 300.0
"""Seconds after which an idle worker ends."""

_END_S = 10.0
"""Seconds that a process with broken pipes has for its own end, so that its status is its own."""

KEPT_BYTES = 384 << 20
"""The default of the memory that a worker may hold between two jobs."""


OnAbandon = Callable[[Callable[[], None] | None], None]
"""Is told how to end a job that no caller waits for any more; None when it has ended."""


def never_abandoned(stop: Callable[[], None] | None) -> None:
    """An `OnAbandon` of a job for which somebody always waits."""


class _Over(Enum):
    """Follows the last answer to a job."""

    OVER = 0


class WorkerProcesses:
    """The workers of one module. Thread-safe."""

    def __init__(self, module: str, setup: object, *, kept_bytes: int = KEPT_BYTES) -> None:
        """No worker is started yet.

        Args:
            module: is run as ``python -m``.
            setup: the first message to each worker.
            kept_bytes: a worker that holds more memory than this after a job ends, which gives it back.
        """
        self._command = [sys.executable, "-P", "-m", module, str(kept_bytes)]
        self._setup = setup
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._closed = False
        weakref.finalize(self, _end_at_exit, os.getpid(), self._idle, self._busy)

    def take(self) -> tuple[WorkerProcess, bool]:
        """A worker for one job, and whether it has had one before. `give_back` must follow.

        Raises:
            ClosedError: the workers are closed.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the worker processes are closed")
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    self._busy.add(process)
                    return process, True
                _discard(process)
            process = self._start()
            self._busy.add(process)
            return process, False

    def give_back(self, process: WorkerProcess) -> None:
        """End the use of a worker, dead or alive."""
        with self._lock:
            self._busy.discard(process)
            if process.poll() is None and not self._closed:
                self._idle.append(process)
                return
        process.kill()
        _discard(process)

    def answers(self, job: object, on_abandon: OnAbandon = never_abandoned) -> tuple[list[Any], int | None]:
        """Do a job in a worker.

        Args:
            job: the job.
            on_abandon: is told how to end the job early.

        Returns:
            The answers, and the status with which the worker died before it gave all of them; None if it lives.

        Raises:
            ClosedError: the workers are closed, or were closed meanwhile.
        """
        stopped: list[bool] = []
        process, used = self.take()
        answers, death = self._ask(process, used, job, on_abandon, stopped)
        if used and death is not None and -death not in ALARMS and not answers and not stopped:
            # It answered nothing: it may have been ending before it got the job. Try once more.
            process, used = self.take()
            answers, death = self._ask(process, used, job, on_abandon, stopped)
        if death is not None and self._closed:
            raise ClosedError("the worker processes were closed")
        return answers, death

    def _ask(
        self, process: WorkerProcess, used: bool, job: object, on_abandon: OnAbandon, stopped: list[bool]
    ) -> tuple[list[Any], int | None]:
        """Send a job to a worker that was taken, and give the worker back. It is killed if no caller waits any more."""
        # The setup goes through the pipe as fast as a new worker reads it, so no lock is held meanwhile.
        messages = [job] if used else [self._setup, job]
        assert process.stdin is not None
        assert process.stdout is not None

        def stop() -> None:
            stopped.append(True)
            process.kill()

        on_abandon(stop)
        answers: list[Any] = []
        try:
            for message in messages:
                pickle.dump(message, process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            while (answer := pickle.load(process.stdout)) is not _Over.OVER:
                answers.append(answer)
        except (OSError, EOFError, pickle.UnpicklingError):
            with contextlib.suppress(subprocess.TimeoutExpired):  # its pipe broke: it is ending
                process.wait(_END_S)
            process.kill()
            return answers, process.wait()
        finally:
            on_abandon(None)
            self.give_back(process)
        return answers, None

    def close(self) -> None:
        """End all workers; jobs in flight fail, and so do later ones."""
        with self._lock:
            self._closed = True
        _end(self._idle, self._busy)

    def _start(self) -> WorkerProcess:
        environment = {
            **os.environ,
            # The worker imports from the same paths as this process.
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OPENBLAS_NUM_THREADS": "1",
            "RAYON_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        # In a group of its own, since a terminal sends SIGINT to the whole group. The parent ends this process.
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, process_group=0
        )
        # An idle worker that ends is no zombie until the next job comes.
        threading.Thread(target=process.wait, name="worker-end", daemon=True).start()
        with contextlib.suppress(OSError):  # if it died at once, the first job reports it
            # From its first instruction: importing its modules takes longer than most jobs.
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        return process


def serve(start: Callable[[_SetupT], Callable[[Any], Iterable[object]]]) -> None:
    """Answer jobs until the parent closes the pipes or ends, at any moment. Then this process ends without a word.

    Args:
        start: gets the setup; returns the function from a job to its answers.
    """
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints go to standard error, so that only answers go through the pipe
    work = start(_receive(jobs))
    gc.freeze()  # what is loaded stays: collections need not look at it
    kept_bytes, served = int(sys.argv[1]), False
    while _resident_bytes() < kept_bytes or not served:
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, _IDLE_S)
        job = _receive(jobs)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for answer in chain(work(job), [_Over.OVER]):
            _send(answers, answer)
        served = True


def _receive(jobs: BinaryIO) -> Any:
    try:
        return pickle.load(jobs)
    except (EOFError, pickle.UnpicklingError):  # nothing more comes, or half a message
        os._exit(0)


def _send(answers: BinaryIO, answer: object) -> None:
    try:
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()
    except BrokenPipeError:
        os._exit(0)  # at once: another end would flush into the pipe again


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _end_at_exit(parent: int, idle: MutableSequence[WorkerProcess], busy: AbstractSet[WorkerProcess]) -> None:
    """End these workers, unless this process is a fork of their parent: threads of the parent may hold the pipes' locks."""
    if os.getpid() == parent:
        _end(idle, busy)


def _end(idle: MutableSequence[WorkerProcess], busy: AbstractSet[WorkerProcess]) -> None:
    """End these workers; jobs of busy ones fail.

    The pipes of a busy one are its job's: a thread that reads one while it is closed gets whatever error its reader has.
    """
    unused, used = [*idle], [*busy]
    idle.clear()
    for process in (*unused, *used):
        process.kill()
    for process in unused:
        _discard(process)
    for process in used:
        process.wait()


def _discard(process: WorkerProcess) -> None:
    """Wait for a process that is ending, and close its pipes."""
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # closing flushes a job that the process no longer reads
                stream.close()
