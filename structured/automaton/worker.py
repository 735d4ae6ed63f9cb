"""The worker process that compiles automata: reads jobs from standard input, writes answers to standard output.

Its own alarm kills it when a job takes too long; the system kills it when it asks for too much memory. It runs as
``python -m draftline.structured.automaton.worker``. `worker_pool` is the other end of its pipes.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
from dataclasses import dataclass
from typing import BinaryIO

from draftline.structured.automaton.byte_automaton import AutomatonTooLargeError, compile_bytes
from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.automaton.token_automaton import TokenAutomaton, compile_tokens
from draftline.structured.errors import InvalidConstraintError


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The first message to a worker: the vocabulary of all its jobs, and their limits."""

    tokens: tuple[bytes, ...]
    eos_ids: tuple[int, ...]
    limits: AutomatonLimits


@dataclass(frozen=True, slots=True)
class AutomatonJob:
    """One regular expression; ``budgets`` asks for masks by distance to acceptance."""

    regex: str
    budgets: bool


ALARMS = (signal.SIGPROF, signal.SIGALRM)
"""The signals that end a worker whose job takes too long."""

Answer = TokenAutomaton | InvalidConstraintError | AutomatonTooLargeError | RuntimeError


def compile_job(setup: WorkerSetup, job: AutomatonJob) -> Answer:
    """The automaton of a job, or the error that it ends in."""
    limits = setup.limits
    try:
        automaton = compile_bytes(job.regex, limits.states)
        return compile_tokens(automaton, setup.tokens, setup.eos_ids, budgets=job.budgets, max_bytes=limits.table_bytes)
    except (InvalidConstraintError, AutomatonTooLargeError) as error:
        return error
    except MemoryError:
        return AutomatonTooLargeError(f"compiling it takes more than {limits.memory_bytes >> 20} MiB of memory")
    except Exception as error:  # noqa: BLE001 - the parent raises it; the worker goes on
        return RuntimeError(f"the automaton compiler failed: {error!r}")


def main() -> None:
    """Answer jobs until standard input ends."""
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints go to standard error, so that only answers go through the pipe
    setup: WorkerSetup = pickle.load(jobs)
    memory = setup.limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    os.nice(19)  # whoever streams comes first
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the whole group; the parent ends this process
    for alarm in ALARMS:
        signal.signal(alarm, signal.SIG_DFL)  # ends the process, even inside native code
    _serve(setup, jobs, answers)


def _set_alarms(seconds: float) -> None:
    """End this process after ``seconds`` of processor time, or four times as long by the clock; 0 cancels that."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 4 * seconds)


def _serve(setup: WorkerSetup, jobs: BinaryIO, answers: BinaryIO) -> None:
    while True:
        try:
            job: AutomatonJob = pickle.load(jobs)
        except EOFError:
            return
        _set_alarms(setup.limits.seconds)
        answer = compile_job(setup, job)
        _set_alarms(0)
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    main()
