"""``ConstraintCompiler``: compiles constraints, each once, beside whatever else goes on.

What compiles is a thread, or a process of its own (`compile_worker`), never the caller. Constraints that are asked for
while they are being compiled wait for that; those that were compiled are kept, the least recently used going first.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from llguidance import LLMatcher

from draftline.structured.automaton.byte_automaton import TooManyStatesError
from draftline.structured.automaton.compile_worker import CompileWorkers
from draftline.structured.automaton.forced_drafts import ForcedDrafts
from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.compiled import Compiled, CompiledAutomaton, CompiledGrammar, Report
from draftline.structured.constraint import Constraint, language
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError, Violation
from draftline.structured.grammar.matcher import GrammarBackend
from draftline.structured.language import Language
from draftline.structured.vocabulary import ByteVocabulary


@dataclass(frozen=True, slots=True)
class CompilerLimits:
    """What compiling may cost.

    Attributes:
        cache_bytes: what is kept of compiled constraints.
        threads: constraints that are compiled at once.
        automaton: bounds on one automaton; what goes beyond is left to a grammar.
    """

    cache_bytes: int = 256 << 20
    threads: int = 2
    automaton: AutomatonLimits = field(default_factory=AutomatonLimits)


class ConstraintCompiler:
    """Compiles constraints for one vocabulary. Thread-safe.

    Attributes:
        vocabulary: which.
    """

    def __init__(self, vocabulary: ByteVocabulary, limits: CompilerLimits | None = None) -> None:
        """Nothing is started yet."""
        limits = limits or CompilerLimits()
        self.vocabulary = vocabulary
        self._workers = CompileWorkers(
            vocabulary.tokens, sorted(vocabulary.eos_ids), limits.automaton, processes=limits.threads
        )
        self._threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="constraint")
        self._cache = _Cache(limits.cache_bytes)
        self._lock = threading.Lock()
        self._under_way: dict[Constraint, Future[Compiled]] = {}
        self._grammars: GrammarBackend | None = None
        self._grammars_lock = threading.Lock()

    def submit(self, constraint: Constraint) -> Future[Compiled]:
        """Compile a constraint, or find it compiled. Returns at once.

        The future raises:
            InvalidConstraintError: it is not what it should be, too large, or nothing matches it.
            UnsupportedConstraintError: parts of it cannot be enforced exactly.
        """
        with self._lock:
            compiled = self._cache.get(constraint)
            if compiled is not None:
                done: Future[Compiled] = Future()
                done.set_result(compiled)
                return done
            future = self._under_way.get(constraint)
            if future is not None:
                return future
            future = self._under_way[constraint] = self._threads.submit(self._compile, constraint)
        # Without the lock: what is done by now is kept at once, by this thread.
        future.add_done_callback(lambda done: self._keep(constraint, done))
        return future

    def compile(self, constraint: Constraint) -> Compiled:
        """The same, for callers that can wait."""
        return self.submit(constraint).result()

    def close(self) -> None:
        """End what is under way; nothing can be compiled any more."""
        self._workers.close()
        self._threads.shutdown(cancel_futures=True)

    def _keep(self, constraint: Constraint, done: Future[Compiled]) -> None:
        with self._lock:
            self._under_way.pop(constraint, None)
            if not done.cancelled() and done.exception() is None:
                self._cache.put(constraint, done.result())

    def _compile(self, constraint: Constraint) -> Compiled:
        started = time.monotonic()
        asked = language(constraint)
        why = asked.not_regular or ""
        if asked.regex is not None:
            try:
                return self._automaton(asked.regex, constraint, asked, started)
            except TooManyStatesError as error:
                why = str(error)
        return self._grammar(constraint, asked, started, why)

    def _automaton(self, regex: str, constraint: Constraint, asked: Language, started: float) -> Compiled:
        try:
            automaton = self._workers.compile(regex, budgets=constraint.close_within_budget)
        except InvalidConstraintError as error:
            # outlines-core does not say where a regular expression is wrong; llguidance does.
            where = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(asked.grammar))
            raise InvalidConstraintError(where.strip() if "regex parse error" in where else str(error)) from None
        drafts = ForcedDrafts.of(automaton, self.vocabulary)
        report = Report(
            backend="automaton",
            states=automaton.states,
            classes=automaton.classes,
            masks=len(automaton.masks),
            compile_s=time.monotonic() - started,
            unenforced=asked.unenforced,
            no_automaton=None,
        )
        return CompiledAutomaton(report, automaton, drafts)

    def _grammar(self, constraint: Constraint, asked: Language, started: float, why: str) -> Compiled:
        if constraint.close_within_budget:
            reason = f"how near a text is to its end is known of automata only, and this constraint has none: {why}"
            raise UnsupportedConstraintError([Violation("", "close_within_budget", reason)])
        with self._grammars_lock:
            if self._grammars is None:
                self._grammars = GrammarBackend(self.vocabulary)
        matcher = self._grammars.compile(asked.grammar)
        report = Report(
            backend="grammar",
            states=0,
            classes=0,
            masks=0,
            compile_s=time.monotonic() - started,
            unenforced=asked.unenforced,
            no_automaton=why,
        )
        return CompiledGrammar(report, matcher, len(asked.grammar), self.vocabulary)


class _Cache:
    """Compiled constraints, up to so many bytes. The caller sees to it that one thread at a time uses it."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[Constraint, tuple[Compiled, int]] = OrderedDict()

    def get(self, constraint: Constraint) -> Compiled | None:
        """What is kept of it, which is now the most recently used."""
        found = self._kept.get(constraint)
        if found is None:
            return None
        self._kept.move_to_end(constraint)
        return found[0]

    def put(self, constraint: Constraint, compiled: Compiled) -> None:
        """Keep it, and no more of the others than there is room for."""
        size = compiled.nbytes + 2 * len(constraint.source)
        if size > self._most_bytes or constraint in self._kept:
            return
        self._kept[constraint] = compiled, size
        self._bytes += size
        while self._bytes > self._most_bytes:
            _, (_, gone) = self._kept.popitem(last=False)
            self._bytes -= gone
