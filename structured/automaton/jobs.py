"""The messages between `worker_pool` and its workers."""

from __future__ import annotations

from dataclasses import dataclass

from draftline.structured.automaton.byte_automaton import AutomatonTooLargeError
from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.constraint import ConstraintSpec
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.grammar.parsers import GrammarLimits
from draftline.structured.language import Language


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The first message to a worker: the vocabulary of all its jobs, and their limits."""

    tokens: tuple[bytes, ...]
    eos_ids: tuple[int, ...]
    special_ids: tuple[int, ...]
    limits: AutomatonLimits
    grammar_limits: GrammarLimits


@dataclass(frozen=True, slots=True)
class GrammarTrial:
    """The job of compiling a grammar, and throwing the result away: parsers cannot move between processes."""

    grammar: str


Job = ConstraintSpec | GrammarTrial

LanguageAnswer = Language | InvalidConstraintError | UnsupportedConstraintError | RuntimeError

Answer = TokenAutomaton | InvalidConstraintError | AutomatonTooLargeError | RuntimeError

TrialAnswer = InvalidConstraintError | RuntimeError | None
