"""The worker process that compiles constraints: ``python -m draftline.structured.automaton.worker``.

Two answers follow a constraint: its language, then, if that is regular, its automaton. One answer follows a language that
is to be enforced by a grammar: the grammar, or why it cannot be used. None follows a preparation. All of them take work of
untrusted size: in Python, which would hold up the threads of a process that streams, or in native code that cannot be
stopped, and may crash. A worker's own alarm kills it when a job takes too long; the system kills it when it asks for too
much memory. `worker_pool` is the other end of its pipes.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from draftline.structured.automaton.byte_moves import byte_moves
from draftline.structured.automaton.jobs import (
    Answer,
    GrammarTrial,
    Job,
    LanguageAnswer,
    Preparation,
    Tabulation,
    TrialAnswer,
    WorkerSetup,
)
from draftline.structured.automaton.limits import AutomatonTooLargeError
from draftline.structured.constraint import ConstraintSpec, language
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.grammar.lark import regex_error
from draftline.structured.language import Language
from draftline.structured.tags.form import leaves
from draftline.structured.tags.special import SpecialNames, marking_tokens
from draftline.structured.worker_processes import ALARMS, serve

if TYPE_CHECKING:
    from draftline.structured.automaton.byte_automaton import ByteAutomaton
    from draftline.structured.automaton.token_automaton import TokenAutomaton
    from draftline.structured.grammar.backend import GrammarBackend


_CLOCK_FACTOR = 24
"""A worker has the lowest priority. A busy machine may run it that much slower, and a constraint is not to blame for it."""


class Worker:
    """Answers jobs."""

    def __init__(self, setup: WorkerSetup) -> None:
        """Nothing is compiled yet."""
        self._setup = setup

    def answers(self, job: Job) -> Iterator[LanguageAnswer | Answer | TrialAnswer]:
        """The answers to a job, within its time."""
        limits = self._setup.limits
        match job:
            case Preparation():
                import draftline.structured.automaton.token_automaton
                import draftline.structured.tags.determinize
                import draftline.structured.tags.nfa_builder  # noqa: F401 - all stay loaded
            case GrammarTrial():
                grammars = self._grammars
                _set_alarms(self._setup.grammar_limits.seconds, limits.seconds)
                yield try_grammar(self._setup, grammars, job.language)
            case ConstraintSpec():
                _set_alarms(limits.seconds, limits.seconds)
                allowed = find_language(self._setup, job)
                yield allowed
                if isinstance(allowed, Language) and allowed.is_regular:
                    yield compile_language(self._setup, allowed, job)
            case Tabulation():
                _set_alarms(limits.seconds, limits.seconds)
                yield compile_tables(self._setup, job.automaton)
        _set_alarms(0, 0)

    @cached_property
    def _grammars(self) -> GrammarBackend:
        from draftline.structured.grammar.backend import GrammarBackend

        return GrammarBackend(self._setup.vocabulary, self._setup.grammar_limits)


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


def compile_language(setup: WorkerSetup, allowed: Language, job: ConstraintSpec) -> Answer:
    """The tables of a regular language, or its automaton over bytes if that is large, or the error that it ends in.

    Args:
        setup: the vocabulary and the limits.
        allowed: the language.
        job: the constraint, which tells the masks by distance that are wanted.
    """

    def work() -> TokenAutomaton | ByteAutomaton:
        automaton = _byte_automaton(setup, allowed)
        limited = job.reasoning is not None and job.reasoning.limited
        if automaton.states > setup.limits.awaited_states and not (job.close_within_budget or limited):
            return automaton
        return _tables(setup, automaton, budgets=job.close_within_budget, early_budgets=limited)

    return _answer(setup, work)


def compile_tables(setup: WorkerSetup, automaton: ByteAutomaton) -> Answer:
    """The tables of an automaton, or the error that building them ends in."""
    return _answer(setup, lambda: _tables(setup, automaton, budgets=False))


def _byte_automaton(setup: WorkerSetup, allowed: Language) -> ByteAutomaton:
    """The automaton over bytes of a regular language."""
    from draftline.structured.automaton.byte_automaton import ByteAutomaton
    from draftline.structured.tags.determinize import determinize
    from draftline.structured.tags.nfa_builder import NfaBuilder

    limits = setup.limits
    if allowed.regex is not None:
        size = len(allowed.regex.encode())
        if size > limits.regex_bytes:
            raise AutomatonTooLargeError(f"it has {size} bytes; at most {limits.regex_bytes} are allowed")
        try:
            return ByteAutomaton.of(byte_moves(allowed.regex, limits.states))
        except InvalidConstraintError as error:
            # outlines-core does not say where a regular expression is malformed; llguidance does.
            raise InvalidConstraintError(regex_error(allowed.grammar) or str(error)) from None
    assert allowed.form is not None, "the language is not regular"
    size = sum(len((leaf.language.regex or "").encode()) for leaf in leaves(allowed.form))
    if size > limits.parts_bytes:
        problem = f"the regular expressions inside it have {size} bytes; at most {limits.parts_bytes} are allowed"
        raise AutomatonTooLargeError(problem)
    names = SpecialNames(marking_tokens(allowed.form, setup.vocabulary.special_names))
    return determinize(NfaBuilder(limits.states, names).build(allowed.form), limits.states)


def _tables(
    setup: WorkerSetup, automaton: ByteAutomaton, *, budgets: bool, early_budgets: bool = False
) -> TokenAutomaton:
    from draftline.structured.automaton.byte_automaton import minimised
    from draftline.structured.automaton.token_automaton import compile_tokens

    return compile_tokens(
        minimised(automaton),
        setup.vocabulary.tokens,
        sorted(setup.vocabulary.eos_ids),
        budgets=budgets,
        early_budgets=early_budgets,
        max_bytes=setup.limits.table_bytes,
    )


def _answer(setup: WorkerSetup, work: Callable[[], TokenAutomaton | ByteAutomaton]) -> Answer:
    try:
        return work()
    except (InvalidConstraintError, AutomatonTooLargeError) as error:
        return error
    except MemoryError:
        return AutomatonTooLargeError(f"compiling it takes more than {setup.limits.memory_bytes >> 20} MiB of memory")
    except Exception as error:  # noqa: BLE001 - the parent raises it; the worker goes on
        return RuntimeError(f"the automaton compiler failed: {error!r}")


def try_grammar(setup: WorkerSetup, grammars: GrammarBackend, allowed: Language) -> TrialAnswer:
    """Compile a language's grammar as the engine's process will, and try it. Returns the grammar, or why it is rejected."""
    from draftline.structured.grammar.trial import try_masks

    try:
        grammar = allowed.grammar
        if allowed.form is not None:
            from draftline.structured.tags.lark import tag_grammar

            grammar = tag_grammar(allowed.form, marking_tokens(allowed.form, setup.vocabulary.special_names))
        try_masks(grammars.compile(grammar), setup.vocabulary.mask_words, setup.grammar_limits)
    except (InvalidConstraintError, UnsupportedConstraintError) as error:
        return error
    except Exception as error:  # noqa: BLE001 - the parent raises it; the worker goes on
        return RuntimeError(f"the grammar compiler failed: {error!r}")
    return grammar


def main() -> None:
    """Answer jobs until standard input ends."""

    def start(setup: WorkerSetup) -> Callable[[Job], Iterator[object]]:
        _, most = resource.getrlimit(resource.RLIMIT_AS)  # as of ``ulimit -v``; it cannot be raised
        memory = setup.limits.memory_bytes
        memory = memory if most == resource.RLIM_INFINITY else min(memory, most)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for alarm in ALARMS:
            signal.signal(alarm, signal.SIG_DFL)  # ends the process, even inside native code
        return Worker(setup).answers

    serve(start)


def _set_alarms(seconds: float, clock_seconds: float) -> None:
    """End this process after ``seconds`` of processor time, or a multiple of ``clock_seconds`` by the clock; 0 cancels both."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, _CLOCK_FACTOR * clock_seconds)


if __name__ == "__main__":
    main()
