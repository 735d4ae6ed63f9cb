"""The messages between `worker_pool` and its workers. Not imported here: numpy, see `worker`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from draftline.structured.automaton.limits import AutomatonLimits, AutomatonTooLargeError
from draftline.structured.constraint import ConstraintSpec
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.grammar.limits import GrammarLimits
from draftline.structured.language import Language
from draftline.structured.vocabulary import ByteVocabulary

if TYPE_CHECKING:
    from draftline.structured.automaton.byte_automaton import ByteAutomaton
    from draftline.structured.automaton.token_automaton import TokenAutomaton


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The first message to a worker: the vocabulary of all its jobs, and their limits."""

    vocabulary: ByteVocabulary
    limits: AutomatonLimits
    grammar_limits: GrammarLimits


@dataclass(frozen=True, slots=True)
class Preparation:
    """The job of loading what every automaton needs, before the first one needs it."""


@dataclass(frozen=True, slots=True)
class Tabulation:
    """The job of building the tables of an automaton over bytes."""

    automaton: ByteAutomaton


@dataclass(frozen=True, slots=True)
class GrammarTrial:
    """The job of writing a language's grammar and compiling it. The answer is the grammar: parsers cannot change processes."""

    language: Language


Job = Preparation | ConstraintSpec | Tabulation | GrammarTrial

LanguageAnswer = Language | InvalidConstraintError | UnsupportedConstraintError | RuntimeError

Answer = Union["TokenAutomaton", "ByteAutomaton", InvalidConstraintError, AutomatonTooLargeError, RuntimeError]
"""An automaton's tables, or the automaton over bytes if the tables would take long."""

TrialAnswer = str | InvalidConstraintError | UnsupportedConstraintError | RuntimeError
