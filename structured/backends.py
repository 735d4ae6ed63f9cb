"""``Backends``: makes the compiled constraint of a language, by the backend that enforces it.

An automaton enforces a language that has one of bounded size, and a grammar all others. When and where that is compiled is
the work of `compiler`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from draftline.structured.automaton.compiled import CompiledAutomaton
from draftline.structured.automaton.draft_table import DraftTable
from draftline.structured.automaton.host_automaton import HostAutomaton
from draftline.structured.automaton.limits import AutomatonTooLargeError
from draftline.structured.automaton.starting import StartingAutomaton
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.automaton.worker_pool import AutomatonWorkerPool
from draftline.structured.compiled import CompiledConstraint, CompileReport
from draftline.structured.constraint import ConstraintSpec, ReasoningSpec
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError, Violation
from draftline.structured.grammar.backend import GrammarBackend
from draftline.structured.grammar.compiled import CompiledGrammar
from draftline.structured.grammar.limits import GrammarLimits
from draftline.structured.job_queue import QueuedJob
from draftline.structured.language import Form, Language
from draftline.structured.table_cache import CachedTables
from draftline.structured.tags.special import marking_tokens
from draftline.structured.tags.walk import TagReader
from draftline.structured.unique.cursor import Cursor, Position, ReasoningPosition
from draftline.structured.unique.paths import UniquePaths
from draftline.structured.unique.tokens import ItemTokens
from draftline.structured.vocabulary import ByteVocabulary

SMALLEST_GRAMMAR = Language(None, 'start: "a"')
"""Compiled once, to build what all grammars share."""

Job: TypeAlias = QueuedJob[CompiledConstraint] | QueuedJob[object]
"""A job that a caller waits for, or one that none does."""


class Backends:
    """Makes compiled constraints for one vocabulary. Thread-safe."""

    def __init__(self, vocabulary: ByteVocabulary, workers: AutomatonWorkerPool, limits: GrammarLimits) -> None:
        """Nothing is built yet.

        Args:
            vocabulary: the vocabulary.
            workers: try grammars, and compile automata of reasoning.
            limits: bounds on the parsers of one grammar.
        """
        self._vocabulary = vocabulary
        self._workers = workers
        self._grammar_limits = limits
        self._grammars: GrammarBackend | None = None
        self._grammars_lock = threading.Lock()

    def prepare_grammars(self) -> None:
        """Build what all grammars share."""
        self._grammar_backend().compile(SMALLEST_GRAMMAR.grammar)

    def of(
        self,
        constraint: ConstraintSpec,
        language: Language,
        automaton: TokenAutomaton | AutomatonTooLargeError | None,
        started: float,
        job: Job,
    ) -> CompiledConstraint:
        """The constraint by its automaton, or by a grammar if it has none.

        Args:
            constraint: the constraint.
            language: its texts.
            automaton: its automaton, the limit that it exceeds, or None if the texts are not regular.
            started: when its compilation began.
            job: the work that this is part of.

        Raises:
            InvalidConstraintError: no caller waits any more, or a worker rejects the grammar.
            UnsupportedConstraintError: a grammar cannot enforce all of it.
        """
        if isinstance(automaton, TokenAutomaton):
            return self.of_tables(tables_of(automaton, language), started)
        no_automaton = language.not_regular or "" if automaton is None else str(automaton)
        return self._grammar(constraint, language, started, no_automaton, job)

    def of_tables(self, tables: CachedTables, started: float) -> CompiledConstraint:
        """The constraint by the tables of its automaton."""
        automaton = tables.automaton
        drafts = DraftTable.of(automaton, self._vocabulary)
        report = CompileReport(
            backend="automaton",
            runs_on="device",
            compile_s=time.monotonic() - started,
            unenforced=tables.unenforced,
            closed=tables.closed,
            states=automaton.states,
            classes=automaton.classes,
            masks=len(automaton.masks),
        )
        return CompiledAutomaton(report, automaton, drafts, _tag_reader(tables.form), self._marking(tables.form))

    def starting(self, host: HostAutomaton, language: Language, started: float) -> StartingAutomaton:
        """The constraint by an automaton over bytes, until its tables are built."""
        report = CompileReport(
            backend="automaton",
            runs_on="host",
            compile_s=time.monotonic() - started,
            unenforced=language.unenforced,
            closed=language.closed,
            states=host.automaton.states,
        )
        return StartingAutomaton(report, host, _tag_reader(language.form), self._marking(language.form))

    def _grammar(
        self,
        constraint: ConstraintSpec,
        language: Language,
        started: float,
        no_automaton: str,
        job: Job,
    ) -> CompiledConstraint:
        if constraint.close_within_budget:
            # Where items have to differ, the distance even depends on the items so far: no automaton could know it.
            reason = (
                f"only automata know the distance to the end of a text, and this constraint has none: {no_automaton}"
            )
            raise UnsupportedConstraintError([Violation("", "close_within_budget", reason)])
        # What a worker has compiled compiles here too, in the same time and without a crash.
        grammar = self._workers.try_grammar(language, on_abandon=job.on_abandon)
        if job.is_over:
            raise InvalidConstraintError("no caller waits for it any more")
        matcher = self._grammar_backend().compile(grammar)
        marking = self._marking(language.form)
        report = CompileReport(
            backend="grammar",
            runs_on="host",
            compile_s=time.monotonic() - started,
            unenforced=language.unenforced,
            closed=language.closed,
            no_automaton=no_automaton,
        )
        return CompiledGrammar(
            report,
            matcher,
            len(grammar),
            self._vocabulary,
            unique=self._unique(language, constraint.reasoning, marking),
            guard=self._guard(constraint.reasoning, job),
            tags=_tag_reader(language.form),
            marking=marking,
        )

    def _marking(self, form: Form | None) -> dict[int, bytes]:
        """`CompiledConstraint.marking` of a form."""
        marking = {} if form is None else marking_tokens(form, self._vocabulary.special_names)
        return {token: name.encode() for name, token in marking.items()}

    def _unique(
        self, language: Language, reasoning: ReasoningSpec | None, marking: Mapping[int, bytes]
    ) -> tuple[UniquePaths, ItemTokens, Position] | None:
        if language.unique is None:
            return None
        tokens = self._item_tokens
        if reasoning is None:
            return language.unique, tokens, Cursor()
        if marking:
            tokens = replace(tokens, texts=tuple(marking.get(token, text) for token, text in enumerate(tokens.texts)))
        start = ReasoningPosition(reasoning.end.encode(), reasoning.begin.encode(), required=reasoning.required)
        return language.unique, tokens, start

    @cached_property
    def _item_tokens(self) -> ItemTokens:
        return ItemTokens.of(self._vocabulary)

    def _grammar_backend(self) -> GrammarBackend:
        with self._grammars_lock:
            if self._grammars is None:
                self._grammars = GrammarBackend(self._vocabulary, self._grammar_limits)
            return self._grammars

    def _guard(self, reasoning: ReasoningSpec | None, job: Job) -> TokenAutomaton | None:
        """The automaton of reasoning with a limit, and of any text behind it."""
        if reasoning is None or not reasoning.limited:
            return None
        _, automaton = self._workers.compile(ConstraintSpec("any", "", reasoning=reasoning), on_abandon=job.on_abandon)
        if not isinstance(automaton, TokenAutomaton):
            raise InvalidConstraintError(f"its reasoning has no automaton: {automaton}")
        return automaton


def tables_of(automaton: TokenAutomaton, language: Language) -> CachedTables:
    """What the folder of tables keeps of a constraint."""
    return CachedTables(automaton, language.unenforced, language.closed, language.form)


def _tag_reader(form: Form | None) -> TagReader | None:
    return None if form is None else TagReader(form)
