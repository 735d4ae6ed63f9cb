"""``ConstraintCompiler``: compiles constraints in the background, each once.

Worker processes (`automaton.worker_pool`) read schemas and compile automata. `backends` makes compiled constraints of what
they answer. The caller never blocks. Requests for a constraint that is being compiled share its compilation, and
callers take turns (`job_queue`). A compilation ends when no caller waits for it any more. An LRU cache keeps compiled
constraints, and a folder keeps tables for later processes (`table_cache`).

Outputs with a large automaton begin on the host (`automaton.starting`). Its tables are built behind them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from draftline.structured.automaton.byte_automaton import ByteAutomaton
from draftline.structured.automaton.host_automaton import HostAutomaton
from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.automaton.starting import StartingAutomaton
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.automaton.token_trie import TokenTrie
from draftline.structured.automaton.worker_pool import AutomatonWorkerPool
from draftline.structured.backends import SMALLEST_GRAMMAR, Backends, tables_of
from draftline.structured.compiled import CompiledConstraint, settled
from draftline.structured.compiled_cache import CompiledCache
from draftline.structured.constraint import ConstraintSpec
from draftline.structured.errors import ClosedError, InvalidConstraintError, JobQueueFullError
from draftline.structured.grammar.limits import GrammarLimits
from draftline.structured.job_queue import JobQueue, QueuedJob
from draftline.structured.language import Language
from draftline.structured.table_cache import TableCache
from draftline.structured.tags.special import with_names
from draftline.structured.vocabulary import ByteVocabulary

_WAITING = "constraints wait to be compiled"


@dataclass(frozen=True, slots=True)
class CompilerLimits:
    """Bounds on compiling.

    Attributes:
        cache_bytes: size of the cache of compiled constraints.
        threads: the most constraints that are compiled at once.
        max_waiting: the most constraints that wait for that.
        automaton: bounds on one automaton; beyond them a grammar enforces the constraint.
        grammar: bounds on the parsers of one grammar.
    """

    cache_bytes: int = 256 << 20
    threads: int = 2
    max_waiting: int = 64
    automaton: AutomatonLimits = field(default_factory=AutomatonLimits)
    grammar: GrammarLimits = field(default_factory=GrammarLimits)


class ConstraintCompiler:
    """Compiles constraints for one vocabulary. Thread-safe.

    Attributes:
        vocabulary: the vocabulary.
        observer: is told how each compilation ended ("automaton", "grammar", "error", or "cancelled" where no caller waited
            any more; "tables" for those that are built behind the first outputs), and its seconds in the queue and at
            work. Any thread may call it.
    """

    observer: Callable[[str, float], None] | None = None

    def __init__(
        self, vocabulary: ByteVocabulary, limits: CompilerLimits | None = None, cache_folder: Path | None = None
    ) -> None:
        """No thread or process is started yet.

        Args:
            vocabulary: the vocabulary.
            limits: bounds on compiling.
            cache_folder: where tables are kept for later processes; None keeps them in memory only.
        """
        limits = limits or CompilerLimits()
        self.vocabulary = vocabulary
        # As automata read it.
        self._read_vocabulary = replace(vocabulary, tokens=with_names(vocabulary.tokens, vocabulary.special_names))
        self._tables = None if cache_folder is None else TableCache(cache_folder, vocabulary)
        self._workers = AutomatonWorkerPool(
            self._read_vocabulary, limits.automaton, limits.grammar, max_workers=limits.threads + 1
        )
        self._backends = Backends(vocabulary, self._workers, limits.grammar)
        self._queue: JobQueue[CompiledConstraint] = JobQueue(limits.threads, limits.max_waiting, _WAITING)
        # Work that no output waits for.
        self._background: JobQueue[object] = JobQueue(1, limits.max_waiting, _WAITING)
        self._cache = CompiledCache(limits.cache_bytes)
        self._lock = threading.Lock()
        self._in_flight: dict[ConstraintSpec, QueuedJob[CompiledConstraint]] = {}
        self._tokens: TokenTrie | None = None
        self._trie_lock = threading.Lock()
        self._closed = False
        for queue in (self._queue, self._background):
            # The threads of a queue hold it, so that it is never collected itself.
            weakref.finalize(self, queue.stop).atexit = False

    def submit(self, constraint: ConstraintSpec, caller: str = "") -> Future[CompiledConstraint]:
        """Start to compile a constraint, or find it in the cache. Returns at once.

        Args:
            constraint: the constraint.
            caller: whose it is: callers take turns.

        Returns:
            A future of this caller's own. If it is cancelled, and no other caller waits for the constraint, the compilation
            ends. It raises:
            InvalidConstraintError: the constraint is malformed, too large, or matches no text, or the vocabulary has no end.
            UnsupportedConstraintError: parts of it cannot be enforced exactly.
            ClosedError: the compiler was closed meanwhile.

        Raises:
            JobQueueFullError: too many constraints wait.
            ClosedError: the compiler is closed.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the compiler is closed")
            compiled = self._cache.get(constraint)
            if compiled is not None and not _has_failed(compiled):
                return settled(compiled)
            running = self._in_flight.get(constraint)
            future = None if running is None else running.join()
            if future is None:
                work = partial(self._run, constraint, time.monotonic())
                job = self._queue.submit(caller, work, partial(self._forget, constraint))
                future = job.join()
                assert future is not None, "a job without futures cannot be over"
                self._in_flight[constraint] = job
            return future

    @property
    def in_flight(self) -> int:
        """How many constraints are being compiled, or wait for it."""
        return len(self._in_flight)

    def compile(self, constraint: ConstraintSpec) -> CompiledConstraint:
        """Compile a constraint, and wait for it. Raises what the future of `submit` raises."""
        return self.submit(constraint).result()

    def start(self) -> None:
        """Start a worker, and build what automata share, in the background. Returns at once.

        The first constraint would do it otherwise: it takes about as long as the constraint itself.
        """
        self._do_later(lambda _: self.warm_up())

    def warm_up(self) -> None:
        """Start a worker, and build what automata share. Waits for both."""
        self._build_trie()
        self._workers.prepare()

    def prepare(self) -> None:
        """Build what all grammars share, so that the first one does not: it holds up all threads for some 0.2 s."""
        if not self.vocabulary.eos_ids:
            return  # no constraint will be compiled
        self._backends.prepare_grammars()
        self._do_later(lambda job: self._workers.try_grammar(SMALLEST_GRAMMAR, on_abandon=job.on_abandon))

    def close(self) -> None:
        """End compilations in flight. Later ones fail, as do constraints that are in the cache."""
        with self._lock:
            self._closed = True
        self._workers.close()
        self._queue.close()
        self._background.close()

    def _run(
        self, constraint: ConstraintSpec, submitted: float, job: QueuedJob[CompiledConstraint]
    ) -> CompiledConstraint:
        result = "error"
        try:
            compiled = self._compile(constraint, job)
            result = compiled.report.backend
            with self._lock:
                self._cache.put(constraint, compiled)
            return compiled
        finally:
            if self.observer is not None:
                cancelled = result == "error" and job.is_over
                self.observer("cancelled" if cancelled else result, time.monotonic() - submitted)

    def _forget(self, constraint: ConstraintSpec, job: QueuedJob[CompiledConstraint]) -> None:
        with self._lock:
            if self._in_flight.get(constraint) is job:  # another one may have begun
                del self._in_flight[constraint]

    def _compile(self, constraint: ConstraintSpec, job: QueuedJob[CompiledConstraint]) -> CompiledConstraint:
        if not self.vocabulary.eos_ids:
            raise InvalidConstraintError(
                "constrained texts end in an end-of-sequence token, and the model's files name none (eos_token_id)"
            )
        started = time.monotonic()
        cached = None if self._tables is None else self._tables.get(constraint)
        if cached is not None:
            return self._backends.of_tables(cached, started)
        if self._tokens is None:
            self._do_later(lambda _: self._build_trie())  # while the worker works
        language, automaton = self._workers.compile(constraint, on_abandon=job.on_abandon)
        if isinstance(automaton, ByteAutomaton):
            return self._begin_on_host(constraint, language, automaton, started, job)
        compiled = self._backends.of(constraint, language, automaton, started, job)
        if isinstance(automaton, TokenAutomaton):
            self._do_later(lambda _: self._keep(constraint, automaton, language))
        return compiled

    def _begin_on_host(
        self,
        constraint: ConstraintSpec,
        language: Language,
        automaton: ByteAutomaton,
        started: float,
        job: QueuedJob[CompiledConstraint],
    ) -> CompiledConstraint:
        """Let outputs begin on the host, and build the tables behind them; where they cannot, build the tables first."""
        trie = self._build_trie()
        if trie.is_complete:
            try:
                automaton = automaton.within(trie.bytes_used)
            except InvalidConstraintError:
                raise InvalidConstraintError("no text that matches it can be written in the model's tokens") from None
            host = HostAutomaton(automaton, trie, self._read_vocabulary)
            starting = self._backends.starting(host, language, started)
            if self._do_later(partial(self._tabulate, constraint, language, starting)):
                return starting
        tables = self._workers.tabulate(automaton, on_abandon=job.on_abandon)
        return self._backends.of(constraint, language, tables, started, job)

    def _build_trie(self) -> TokenTrie:
        """The vocabulary as a tree, built once."""
        with self._trie_lock:
            if self._tokens is None:
                self._tokens = TokenTrie.of(self._read_vocabulary.tokens)
            return self._tokens

    def _do_later(self, work: Callable[[QueuedJob[object]], object]) -> bool:
        """Do work that no output waits for. False if too much of it waits."""
        try:
            self._background.submit("", work).join()
        except JobQueueFullError:
            return False
        return True

    def _tabulate(
        self, constraint: ConstraintSpec, language: Language, starting: StartingAutomaton, job: QueuedJob[object]
    ) -> None:
        """Build the tables of a constraint that has outputs already."""
        started = time.monotonic()
        try:
            tables = self._workers.tabulate(starting.host.automaton)
            whole = self._backends.of(constraint, language, tables, started - starting.report.compile_s, job)
        except Exception as error:
            # The outputs go on without; the next request compiles it again.
            starting.whole.set_exception(error)
            raise
        with self._lock:
            self._cache.put(constraint, whole)
        starting.whole.set_result(whole)
        if self.observer is not None:
            self.observer("tables", time.monotonic() - started)
        if isinstance(tables, TokenAutomaton):
            self._keep(constraint, tables, language)

    def _keep(self, constraint: ConstraintSpec, automaton: TokenAutomaton, language: Language) -> None:
        if self._tables is not None:
            self._tables.put(constraint, tables_of(automaton, language))


def _has_failed(compiled: CompiledConstraint) -> bool:
    whole = compiled.whole
    return whole.done() and whole.exception() is not None
