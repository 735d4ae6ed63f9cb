"""``CompileWorkers``: processes that compile automata, started when first needed, and replaced when they die."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import MutableSequence, Sequence
from collections.abc import Set as AbstractSet

from draftline.structured.automaton.byte_automaton import TooManyStatesError
from draftline.structured.automaton.compile_process import ALARMS, Answer, Job, Setup
from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.automaton.token_automaton import TokenAutomaton


class CompileWorkers:
    """Compiles regular expressions for one vocabulary, in processes of their own. Thread-safe."""

    def __init__(
        self, tokens: Sequence[bytes], eos_ids: Sequence[int], limits: AutomatonLimits, *, processes: int = 2
    ) -> None:
        """Nothing is started yet.

        Args:
            tokens: each token's bytes; empty where it stands for no text.
            eos_ids: the tokens that end an output.
            limits: what one job may cost.
            processes: the most that run at once; other jobs wait.
        """
        self._setup = Setup(tuple(tokens), tuple(eos_ids), limits)
        self._free = threading.Semaphore(processes)
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._busy: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        weakref.finalize(self, _end, self._idle, self._busy)

    def compile(self, regex: str, *, budgets: bool) -> TokenAutomaton:
        """The automaton of a regular expression.

        Raises:
            InvalidConstraintError: it is not valid, or matches nothing that the model could write.
            TooManyStatesError: it takes more time, memory or space than the limits allow.
        """
        size, most = len(regex.encode()), self._setup.limits.regex_bytes
        if size > most:
            raise TooManyStatesError(f"it has {size} bytes, of at most {most}")
        with self._free:
            process, used = self._take()
            answer = self._ask(process, Job(regex, budgets))
            if used and process.returncode is not None and -process.returncode not in ALARMS:
                # It may have been about to die before it had the job.
                process, _ = self._take()
                answer = self._ask(process, Job(regex, budgets))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End all processes; jobs under way fail, and so do later ones."""
        with self._lock:
            self._closed = True
        _end(self._idle, self._busy)

    def _take(self) -> tuple[subprocess.Popen[bytes], bool]:
        """A process, and whether it has worked before."""
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
            # What this process can import, wherever it has it from.
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OPENBLAS_NUM_THREADS": "1",
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "draftline.structured.automaton.compile_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # if it died at once, whoever asks it will find out
            pickle.dump(self._setup, process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
        return process

    def _ask(self, process: subprocess.Popen[bytes], job: Job) -> Answer:
        """Have a job done by a process that was taken, and give it back."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(job, process.stdin)
            process.stdin.flush()
            answer: Answer = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            process.kill()
            return self._why(process.wait())
        finally:
            self._give_back(process)
        return answer

    def _why(self, status: int) -> Answer:
        """What the death of a process says of its job."""
        limits = self._setup.limits
        if -status in ALARMS:
            return TooManyStatesError(f"compiling it takes longer than {limits.seconds:g} s")
        # Running out of memory ends in an abort, or in the system's kill.
        return TooManyStatesError(
            f"compiling it takes more than {limits.memory_bytes >> 20} MiB of memory (the compiler ended with {status})"
        )


def _end(idle: MutableSequence[subprocess.Popen[bytes]], busy: AbstractSet[subprocess.Popen[bytes]]) -> None:
    """End these processes; whoever waits for the answer of a busy one gets none."""
    processes = [*idle, *busy]
    idle.clear()
    for process in processes:
        process.kill()
    for process in processes:
        _discard(process)


def _discard(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that is ending, and close what connects to it."""
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # there may be something that it was never sent
                stream.close()
