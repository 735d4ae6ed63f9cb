"""``AutomatonWorkerPool``: worker processes that compile constraints, started on demand and replaced when they die."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, MutableSequence, Sequence
from collections.abc import Set as AbstractSet

from draftline.structured.automaton.limits import AutomatonLimits, AutomatonTooLargeError
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.automaton.worker import ALARMS, Answer, LanguageAnswer, WorkerSetup
from draftline.structured.constraint import ConstraintSpec
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.grammar.lark import regex_error
from draftline.structured.language import Language

OnAbandon = Callable[[Callable[[], None] | None], None]
"""Is told how to end a job that no caller waits for any more; None when it has ended."""

_Answers = tuple[LanguageAnswer | AutomatonTooLargeError, Answer | None]
"""A worker's answers to a job: the language, and the automaton if that is regular. A worker that dies is too large a job."""


class AutomatonWorkerPool:
    """Compiles constraints for one vocabulary in worker processes. Thread-safe."""

    def __init__(
        self, tokens: Sequence[bytes], eos_ids: Sequence[int], limits: AutomatonLimits, *, max_workers: int = 2
    ) -> None:
        """No worker is started yet.

        Args:
            tokens: each token's bytes; empty where it stands for no text.
            eos_ids: the tokens that end an output.
            limits: bounds on one job.
            max_workers: the most processes at once; other jobs wait.
        """
        self._setup = WorkerSetup(tuple(tokens), tuple(eos_ids), limits)
        self._free = threading.Semaphore(max_workers)
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._busy: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        weakref.finalize(self, _end, self._idle, self._busy)

    def compile(
        self, constraint: ConstraintSpec, *, on_abandon: OnAbandon = lambda stop: None
    ) -> tuple[Language, TokenAutomaton | AutomatonTooLargeError | None]:
        """The language of a constraint, and its automaton.

        Args:
            constraint: the constraint.
            on_abandon: is told how to end the job early.

        Returns:
            The language; and its automaton, or why it has none within the limits of time, memory and table size. None if
            the language is not regular.

        Raises:
            InvalidConstraintError: the constraint is malformed, takes too long to read, or no text that it allows can be
                written in the model's tokens.
            UnsupportedConstraintError: parts of it cannot be enforced exactly.
        """
        with self._free:
            process, used = self._take()
            stopped: list[bool] = []
            answers = self._stoppable(process, constraint, on_abandon, stopped)
            died = isinstance(answers[0], AutomatonTooLargeError) and -(process.returncode or 0) not in ALARMS
            if used and died and not stopped:
                # It answered nothing: it may have been dying before it got the job. Try once more.
                process, _ = self._take()
                answers = self._stoppable(process, constraint, on_abandon, stopped)
        allowed, automaton = answers
        if isinstance(allowed, AutomatonTooLargeError):
            raise InvalidConstraintError(str(allowed))
        if isinstance(allowed, Exception):
            raise allowed
        if isinstance(automaton, AutomatonTooLargeError) or not isinstance(automaton, Exception):
            return allowed, automaton
        if isinstance(automaton, InvalidConstraintError):
            # outlines-core does not say where a regular expression is malformed; llguidance does.
            raise InvalidConstraintError(regex_error(allowed.grammar) or str(automaton))
        raise automaton

    def _stoppable(
        self, process: subprocess.Popen[bytes], job: ConstraintSpec, on_abandon: OnAbandon, stopped: list[bool]
    ) -> _Answers:
        """`_ask`, with a worker that is killed if no caller waits for the answer any more."""

        def stop() -> None:
            stopped.append(True)
            process.kill()

        on_abandon(stop)
        try:
            return self._ask(process, job)
        finally:
            on_abandon(None)

    def close(self) -> None:
        """End all workers; jobs in flight fail, and so do later ones."""
        with self._lock:
            self._closed = True
        _end(self._idle, self._busy)

    def _take(self) -> tuple[subprocess.Popen[bytes], bool]:
        """A worker, and whether it has had a job before."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the constraint compiler is closed")
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    self._busy.add(process)
                    return process, True
                _discard(process)
            process = self._start()
            self._busy.add(process)
            return process, False

    def _give_back(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._busy.discard(process)
            if process.poll() is None and not self._closed:
                self._idle.append(process)
                return
        process.kill()
        _discard(process)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            # The worker imports from the same paths as this process.
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OPENBLAS_NUM_THREADS": "1",
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "draftline.structured.automaton.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # if it died at once, `_ask` reports it
            pickle.dump(self._setup, process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
        return process

    def _ask(self, process: subprocess.Popen[bytes], job: ConstraintSpec) -> _Answers:
        """Send a job to a worker that was taken, and give the worker back."""
        assert process.stdin is not None
        assert process.stdout is not None
        allowed: LanguageAnswer | None = None
        try:
            pickle.dump(job, process.stdin)
            process.stdin.flush()
            allowed = pickle.load(process.stdout)
            regular = isinstance(allowed, Language) and allowed.regex is not None
            return allowed, pickle.load(process.stdout) if regular else None
        except (OSError, EOFError, pickle.UnpicklingError):
            process.kill()
            death = self._death(process.wait())
            return (death, None) if allowed is None else (allowed, death)
        finally:
            self._give_back(process)

    def _death(self, status: int) -> AutomatonTooLargeError:
        """The answer to a job whose worker ended with ``status``."""
        limits = self._setup.limits
        if -status in ALARMS:
            return AutomatonTooLargeError(f"compiling it takes longer than {limits.seconds:g} s")
        # Running out of memory ends in an abort, or in the system's kill.
        return AutomatonTooLargeError(
            f"compiling it takes more than {limits.memory_bytes >> 20} MiB of memory (the compiler ended with {status})"
        )


def _end(idle: MutableSequence[subprocess.Popen[bytes]], busy: AbstractSet[subprocess.Popen[bytes]]) -> None:
    """End these workers; jobs of busy ones fail."""
    processes = [*idle, *busy]
    idle.clear()
    for process in processes:
        process.kill()
    for process in processes:
        _discard(process)


def _discard(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that is ending, and close its pipes."""
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # closing flushes a job that the process no longer reads
                stream.close()
