"""``ConstraintCompiler``: compiles constraints in the background, each once.

Threads compile grammars, worker processes (`automaton.worker_pool`) compile automata; the caller never blocks. Requests
for a constraint that is being compiled share its future. An LRU cache keeps compiled constraints.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from draftline.structured.automaton.byte_automaton import AutomatonTooLargeError
from draftline.structured.automaton.compiled import CompiledAutomaton
from draftline.structured.automaton.draft_table import DraftTable
from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.automaton.worker_pool import AutomatonWorkerPool
from draftline.structured.compiled import CompiledConstraint, CompileReport
from draftline.structured.constraint import ConstraintSpec, language
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError, Violation
from draftline.structured.grammar.backend import GrammarBackend
from draftline.structured.grammar.compiled import CompiledGrammar
from draftline.structured.grammar.lark import regex_error
from draftline.structured.grammar.parsers import GrammarLimits
from draftline.structured.language import Language
from draftline.structured.vocabulary import ByteVocabulary


@dataclass(frozen=True, slots=True)
class CompilerLimits:
    """Bounds on compiling.

    Attributes:
        cache_bytes: size of the cache of compiled constraints.
        threads: the most constraints that are compiled at once.
        automaton: bounds on one automaton; beyond them a grammar enforces the constraint.
        grammar: bounds on the parsers of one grammar.
    """

    cache_bytes: int = 256 << 20
    threads: int = 2
    automaton: AutomatonLimits = field(default_factory=AutomatonLimits)
    grammar: GrammarLimits = field(default_factory=GrammarLimits)


class ConstraintCompiler:
    """Compiles constraints for one vocabulary. Thread-safe.

    Attributes:
        vocabulary: the vocabulary.
        observer: is told how each compilation ended ("automaton", "grammar" or "error"), and its seconds in the queue and
            at work. Any thread may call it.
    """

    observer: Callable[[str, float], None] | None = None

    def __init__(self, vocabulary: ByteVocabulary, limits: CompilerLimits | None = None) -> None:
        """No thread or process is started yet."""
        limits = limits or CompilerLimits()
        self.vocabulary = vocabulary
        self._workers = AutomatonWorkerPool(
            vocabulary.tokens, sorted(vocabulary.eos_ids), limits.automaton, max_workers=limits.threads
        )
        self._threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="constraint")
        self._cache = _Cache(limits.cache_bytes)
        self._lock = threading.Lock()
        self._in_flight: dict[ConstraintSpec, Future[CompiledConstraint]] = {}
        self._grammar_limits = limits.grammar
        self._grammars: GrammarBackend | None = None
        self._grammars_lock = threading.Lock()

    def submit(self, constraint: ConstraintSpec) -> Future[CompiledConstraint]:
        """Start to compile a constraint, or find it in the cache. Returns at once.

        The future raises:
            InvalidConstraintError: it is malformed, too large, or matches no text.
            UnsupportedConstraintError: parts of it cannot be enforced exactly.
        """
        with self._lock:
            compiled = self._cache.get(constraint)
            if compiled is not None:
                done: Future[CompiledConstraint] = Future()
                done.set_result(compiled)
                return done
            future = self._in_flight.get(constraint)
            if future is not None:
                return future
            started = time.monotonic()
            future = self._in_flight[constraint] = self._threads.submit(self._compile, constraint)
        # Outside the lock: if the future is done by now, this thread runs the callback, which takes the lock.
        future.add_done_callback(lambda done: self._keep(constraint, done, started))
        return future

    @property
    def in_flight(self) -> int:
        """How many constraints are being compiled, or wait for it."""
        return len(self._in_flight)

    def compile(self, constraint: ConstraintSpec) -> CompiledConstraint:
        """Compile a constraint, and wait for it. Raises what the future of `submit` raises."""
        return self.submit(constraint).result()

    def close(self) -> None:
        """End compilations in flight. Later ones fail."""
        self._workers.close()
        self._threads.shutdown(cancel_futures=True)

    def _keep(self, constraint: ConstraintSpec, done: Future[CompiledConstraint], started: float) -> None:
        if self.observer is not None and not done.cancelled():
            result = "error" if done.exception() is not None else done.result().report.backend
            self.observer(result, time.monotonic() - started)
        with self._lock:
            self._in_flight.pop(constraint, None)
            if not done.cancelled() and done.exception() is None:
                self._cache.put(constraint, done.result())

    def _compile(self, constraint: ConstraintSpec) -> CompiledConstraint:
        started = time.monotonic()
        allowed = language(constraint)
        no_automaton = allowed.not_regular or ""
        if allowed.regex is not None:
            try:
                return self._automaton(allowed.regex, constraint, allowed, started)
            except AutomatonTooLargeError as error:
                no_automaton = str(error)
        return self._grammar(constraint, allowed, started, no_automaton)

    def _automaton(
        self, regex: str, constraint: ConstraintSpec, allowed: Language, started: float
    ) -> CompiledConstraint:
        try:
            automaton = self._workers.compile(regex, budgets=constraint.close_within_budget)
        except InvalidConstraintError as error:
            # outlines-core does not say where a regular expression is malformed; llguidance does.
            raise InvalidConstraintError(regex_error(allowed.grammar) or str(error)) from None
        drafts = DraftTable.of(automaton, self.vocabulary)
        report = CompileReport(
            backend="automaton",
            states=automaton.states,
            classes=automaton.classes,
            masks=len(automaton.masks),
            compile_s=time.monotonic() - started,
            unenforced=allowed.unenforced,
            no_automaton=None,
        )
        return CompiledAutomaton(report, automaton, drafts)

    def _grammar(
        self, constraint: ConstraintSpec, allowed: Language, started: float, no_automaton: str
    ) -> CompiledConstraint:
        if constraint.close_within_budget:
            reason = (
                f"only automata know the distance to the end of a text, and this constraint has none: {no_automaton}"
            )
            raise UnsupportedConstraintError([Violation("", "close_within_budget", reason)])
        with self._grammars_lock:
            if self._grammars is None:
                self._grammars = GrammarBackend(self.vocabulary, self._grammar_limits)
        matcher = self._grammars.compile(allowed.grammar)
        report = CompileReport(
            backend="grammar",
            states=0,
            classes=0,
            masks=0,
            compile_s=time.monotonic() - started,
            unenforced=allowed.unenforced,
            no_automaton=no_automaton,
        )
        return CompiledGrammar(report, matcher, len(allowed.grammar), self.vocabulary)


class _Cache:
    """An LRU cache of compiled constraints, bounded in bytes. Not thread-safe: the caller holds a lock."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[ConstraintSpec, tuple[CompiledConstraint, int]] = OrderedDict()

    def get(self, constraint: ConstraintSpec) -> CompiledConstraint | None:
        """The compiled constraint, now the most recently used; None if it is not cached."""
        found = self._kept.get(constraint)
        if found is None:
            return None
        self._kept.move_to_end(constraint)
        return found[0]

    def put(self, constraint: ConstraintSpec, compiled: CompiledConstraint) -> None:
        """Keep a compiled constraint, and evict others until all fit."""
        size = compiled.nbytes + 2 * len(constraint.source)
        if size > self._max_bytes or constraint in self._kept:
            return
        self._kept[constraint] = compiled, size
        self._bytes += size
        while self._bytes > self._max_bytes:
            _, (_, gone) = self._kept.popitem(last=False)
            self._bytes -= gone
