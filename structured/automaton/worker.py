"""The worker process that compiles constraints: reads jobs from standard input, writes answers to standard output.

Two answers follow a job: the constraint's language, then, if that is regular, its automaton. Both take real work in Python,
which would hold up the threads of a process that streams. Its own alarm kills it when a job takes too long; the system kills it when it asks for too much memory. It runs as
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

from draftline.structured.automaton.byte_automaton import compile_bytes
from draftline.structured.automaton.limits import AutomatonLimits, AutomatonTooLargeError
from draftline.structured.automaton.token_automaton import TokenAutomaton, compile_tokens
from draftline.structured.constraint import ConstraintSpec, language
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.language import Language


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The first message to a worker: the vocabulary of all its jobs, and their limits."""

    tokens: tuple[bytes, ...]
    eos_ids: tuple[int, ...]
    limits: AutomatonLimits


ALARMS = (signal.SIGPROF, signal.SIGALRM)
"""The signals that end a worker whose job takes too long."""

LanguageAnswer = Language | InvalidConstraintError | UnsupportedConstraintError | RuntimeError

Answer = TokenAutomaton | InvalidConstraintError | AutomatonTooLargeError | RuntimeError


def find_language(setup: WorkerSetup, job: ConstraintSpec) -> LanguageAnswer:
    """The language of a constraint, or the error that it ends in."""
    try:
        return language(job)
    except (InvalidConstraintError, UnsupportedConstraintError) as error:
        return error
    except MemoryError:
        return InvalidConstraintError(f"it takes more than {setup.limits.memory_bytes >> 20} MiB of memory to read it")
    except Exception as error:  # noqa: BLE001 - the parent raises it; the worker goes on
        return RuntimeError(f"the constraint compiler failed: {error!r}")


def compile_regex(setup: WorkerSetup, regex: str, *, budgets: bool) -> Answer:
    """The automaton of a regular expression, or the error that it ends in.

    Args:
        setup: the vocabulary and the limits.
        regex: the expression.
        budgets: whether masks by distance to acceptance are wanted.
    """
    limits = setup.limits
    size = len(regex.encode())
    if size > limits.regex_bytes:
        return AutomatonTooLargeError(f"it has {size} bytes; at most {limits.regex_bytes} are allowed")
    try:
        automaton = compile_bytes(regex, limits.states)
        return compile_tokens(automaton, setup.tokens, setup.eos_ids, budgets=budgets, max_bytes=limits.table_bytes)
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
    os.nice(19)  # streams come first
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
            job: ConstraintSpec = pickle.load(jobs)
        except EOFError:
            return
        _set_alarms(setup.limits.seconds)
        allowed = find_language(setup, job)
        pickle.dump(allowed, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()
        if isinstance(allowed, Language) and allowed.regex is not None:
            answer = compile_regex(setup, allowed.regex, budgets=job.close_within_budget)
            pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
        _set_alarms(0)


if __name__ == "__main__":
    main()
