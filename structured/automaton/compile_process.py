"""The process that compiles automata: reads jobs from standard input, writes answers to standard output.

It is meant to be killed: by its own alarm when a job takes too long, by the system when it wants too much memory. Run
as ``python -m``; see `compile_worker` for the other end.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
from dataclasses import dataclass
from typing import BinaryIO

from draftline.structured.automaton.byte_automaton import TooManyStatesError, compile_bytes
from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.automaton.token_automaton import TokenAutomaton, compile_tokens
from draftline.structured.errors import InvalidConstraintError


@dataclass(frozen=True, slots=True)
class Setup:
    """What a process is started with: the vocabulary of all its jobs, and their limits."""

    tokens: tuple[bytes, ...]
    eos_ids: tuple[int, ...]
    limits: AutomatonLimits


@dataclass(frozen=True, slots=True)
class Job:
    """One regular expression, and whether masks by distance are wanted."""

    regex: str
    budgets: bool


ALARMS = (signal.SIGPROF, signal.SIGALRM)
"""What ends a process that takes too long."""

Answer = TokenAutomaton | InvalidConstraintError | TooManyStatesError | RuntimeError


def compile_job(setup: Setup, job: Job) -> Answer:
    """What a job comes to, errors included."""
    limits = setup.limits
    try:
        automaton = compile_bytes(job.regex, limits.states)
        return compile_tokens(automaton, setup.tokens, setup.eos_ids, budgets=job.budgets, max_bytes=limits.table_bytes)
    except (InvalidConstraintError, TooManyStatesError) as error:
        return error
    except MemoryError:
        return TooManyStatesError(f"compiling it takes more than {limits.memory_bytes >> 20} MiB of memory")
    except Exception as error:  # noqa: BLE001 - whoever asked has to know, and the next job is none the worse
        return RuntimeError(f"the automaton compiler failed: {error!r}")


def main() -> None:
    """Answer jobs until there are no more."""
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write among the answers
    setup: Setup = pickle.load(jobs)
    memory = setup.limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides when to end
    for alarm in ALARMS:
        signal.signal(alarm, signal.SIG_DFL)  # ends the process, whatever code it is in
    _serve(setup, jobs, answers)


def _set_alarms(seconds: float) -> None:
    """End this process after so many seconds of work, or four times as many where others work too; 0 takes that back."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 4 * seconds)


def _serve(setup: Setup, jobs: BinaryIO, answers: BinaryIO) -> None:
    while True:
        try:
            job: Job = pickle.load(jobs)
        except EOFError:
            return
        _set_alarms(setup.limits.seconds)
        answer = compile_job(setup, job)
        _set_alarms(0)
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    main()
