"""``AutomatonWorkerPool``: worker processes that compile constraints, and try grammars."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from typing import Any

from draftline.structured.automaton.byte_automaton import ByteAutomaton
from draftline.structured.automaton.jobs import GrammarTrial, Job, Preparation, Tabulation, WorkerSetup
from draftline.structured.automaton.limits import AutomatonLimits, AutomatonTooLargeError
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.constraint import ConstraintSpec
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.grammar.limits import GrammarLimits
from draftline.structured.language import Language
from draftline.structured.vocabulary import ByteVocabulary, no_encoding
from draftline.structured.worker_processes import ALARMS, OnAbandon, WorkerProcesses, never_abandoned


class AutomatonWorkerPool:
    """Compiles constraints for one vocabulary in worker processes. Thread-safe."""

    def __init__(
        self,
        vocabulary: ByteVocabulary,
        limits: AutomatonLimits | None = None,
        grammar_limits: GrammarLimits | None = None,
        max_workers: int = 2,
    ) -> None:
        """No worker is started yet.

        Args:
            vocabulary: the vocabulary, as automata read it (`tags.special.with_names`).
            limits: bounds on one constraint.
            grammar_limits: bounds on one grammar.
            max_workers: the most processes at once; other jobs wait.
        """
        # Drafts of forced text are tokenized where outputs run, and tokenizers are large.
        setup = WorkerSetup(
            replace(vocabulary, encode=no_encoding), limits or AutomatonLimits(), grammar_limits or GrammarLimits()
        )
        self._limits = setup.limits
        self._grammar_limits = setup.grammar_limits
        self._free = threading.Semaphore(max_workers)
        self._processes = WorkerProcesses(
            "draftline.structured.automaton.worker", setup, kept_bytes=setup.limits.kept_bytes
        )

    def prepare(self) -> None:
        """Start a worker, so that the first constraint finds one that has loaded its modules."""
        self._answers(Preparation(), never_abandoned, self._limits.seconds)

    def compile(
        self, constraint: ConstraintSpec, *, on_abandon: OnAbandon = never_abandoned
    ) -> tuple[Language, TokenAutomaton | ByteAutomaton | AutomatonTooLargeError | None]:
        """The language of a constraint, and its automaton.

        Args:
            constraint: the constraint.
            on_abandon: is told how to end the job early.

        Returns:
            The language; and its automaton, or why it has none within the limits of time, memory and table size. A large
            automaton is one over bytes: see `tabulate`. None if the language is not regular.

        Raises:
            InvalidConstraintError: the constraint is malformed, takes too long to read, or no text that it allows can be
                written in the model's tokens.
            UnsupportedConstraintError: parts of it cannot be enforced exactly.
        """
        language, *automata = self._answers(constraint, on_abandon, self._limits.seconds)
        return _required(language), _automaton(automata[0]) if automata else None

    def tabulate(
        self, automaton: ByteAutomaton, *, on_abandon: OnAbandon = never_abandoned
    ) -> TokenAutomaton | AutomatonTooLargeError:
        """The tables of an automaton, or why it has none within the limits of time, memory and table size.

        Raises:
            InvalidConstraintError: no text of it can be written in the model's tokens.
        """
        answers = self._answers(Tabulation(automaton), on_abandon, self._limits.seconds)
        tables: TokenAutomaton | AutomatonTooLargeError = _automaton(answers[0])
        return tables

    def try_grammar(self, language: Language, *, on_abandon: OnAbandon = never_abandoned) -> str:
        """Compile a language's grammar in a worker, so that one that takes too long or crashes the compiler does no harm.

        Args:
            language: the language.
            on_abandon: is told how to end the job early.

        Returns:
            The grammar, in Lark with llguidance's extensions.

        Raises:
            InvalidConstraintError: it is malformed, matches nothing, or cannot be compiled within the limits.
            UnsupportedConstraintError: the language has no grammar.
        """
        answers = self._answers(GrammarTrial(language), on_abandon, self._grammar_limits.seconds)
        grammar: str = _required(answers[0])
        return grammar

    def close(self) -> None:
        """End all workers; jobs in flight fail, and so do later ones."""
        self._processes.close()

    def _answers(self, job: Job, on_abandon: OnAbandon, seconds: float) -> list[Any]:
        """A worker's answers to a job that has ``seconds``; the last one says why, if the worker has died meanwhile.

        The worker is killed if no caller waits any more.
        """
        with self._free:
            answers, death = self._processes.answers(job, on_abandon)
        return answers if death is None else [*answers, AutomatonTooLargeError(self._reason(death, seconds))]

    def _reason(self, status: int, seconds: float) -> str:
        """Why a worker ended with ``status`` in a job that has ``seconds``."""
        if -status in ALARMS:
            return f"compiling it takes longer than {seconds:g} s"
        if status == -signal.SIGSEGV:
            return "it is nested too deeply: compiling it overflows the compiler's stack"
        if status > 0:
            return f"the compiler failed with status {status}: standard error has its traceback"
        # Running out of memory ends in an abort, or in the system's kill.
        return f"compiling it takes more than {self._limits.memory_bytes >> 20} MiB of memory (the compiler ended with {status})"


def _required(answer: Any) -> Any:
    """An answer that a job must have. An error is raised; so is the limit at which the worker died."""
    if isinstance(answer, AutomatonTooLargeError):
        raise InvalidConstraintError(str(answer))
    if isinstance(answer, Exception):
        raise answer
    return answer


def _automaton(answer: Any) -> Any:
    """An automaton, or the limit that keeps it from being built. Other errors are raised."""
    return answer if isinstance(answer, AutomatonTooLargeError) else _required(answer)
