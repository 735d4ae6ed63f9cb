from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE_S, wait_until
from small_vocabulary import allowed, vocabulary

from draftline.structured.automaton.limits import AutomatonLimits, AutomatonTooLargeError
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.automaton.worker_pool import AutomatonWorkerPool
from draftline.structured.compiled import CompiledConstraint
from draftline.structured.compiled_cache import CompiledCache
from draftline.structured.compiler import CompilerLimits, ConstraintCompiler
from draftline.structured.constraint import MAX_CHOICES, ConstraintSpec, ReasoningSpec
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.grammar.limits import GrammarLimits
from draftline.structured.language import Language

VOCABULARY = vocabulary("ab", "abc", '{"', '": ')
EXPLOSION = "[01]*1[01]{40}"
"""2**40 states."""


@pytest.fixture(scope="module")
def compiler() -> Iterator[ConstraintCompiler]:
    compiler = ConstraintCompiler(VOCABULARY, CompilerLimits(automaton=AutomatonLimits(seconds=2.0, states=1000)))
    yield compiler
    compiler.close()


@dataclass(frozen=True)
class Exploded:
    """How an expression was compiled that takes all of the limit's time.

    Attributes:
        compiled: what each of eight threads got that asked at once.
        turns: how often an event loop that slept for 10 ms at a time went round meanwhile.
    """

    compiled: list[CompiledConstraint]
    turns: int


@pytest.fixture(scope="module")
def exploded(compiler: ConstraintCompiler) -> Exploded:
    """Of ``EXPLOSION``: once for all tests."""
    constraint = ConstraintSpec("regex", EXPLOSION)
    futures: list[Future[CompiledConstraint]] = []
    threads = [threading.Thread(target=lambda: futures.append(compiler.submit(constraint))) for _ in range(8)]

    async def wait() -> int:
        turns = 0
        while not all(future.done() for future in futures):
            await asyncio.sleep(0.01)
            turns += 1
        return turns

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    turns = asyncio.run(wait())
    return Exploded([future.result() for future in futures], turns)


def first_mask(compiled: CompiledConstraint) -> set[bytes]:
    words = np.empty(VOCABULARY.mask_words, np.int32)
    compiled.begin().matcher.fill_mask(words)
    return {VOCABULARY.tokens[token] for token in allowed(words, len(VOCABULARY.tokens))}


def choice(*texts: str) -> ConstraintSpec:
    return ConstraintSpec("choice", json.dumps(texts))


def test_a_regular_expression_becomes_an_automaton(compiler: ConstraintCompiler) -> None:
    compiled = compiler.compile(ConstraintSpec("regex", "^ab+$"))
    assert first_mask(compiled) == {b"a", b"ab"}
    report = compiled.report
    assert (report.backend, report.states, report.masks, report.unenforced) == ("automaton", 4, 4, ())
    assert report.compile_s > 0
    assert compiled.shortest == 1  # the token "ab"
    assert report.no_automaton is None


def test_choices_are_literal_texts(compiler: ConstraintCompiler) -> None:
    texts = ["a.c", "a|b", "(x)", "[y]^$", r"\d", "é", "", "a b#", "{1}&&~-", "a.cd", "a.c"]
    matcher = compiler.compile(choice(*texts)).begin().matcher
    assert matcher.complete
    for text in texts:
        ids = [VOCABULARY.tokens.index(bytes([byte])) for byte in text.encode()]
        assert all(matcher.advance(token) for token in ids)
        assert matcher.complete
        matcher.rollback(len(ids))
    for text in ["abc", "a.", "x", "1"]:
        ids = [VOCABULARY.tokens.index(bytes([byte])) for byte in text.encode()]
        taken = sum(1 for token in ids if matcher.advance(token))
        assert taken < len(ids) or not matcher.complete
        matcher.rollback(taken)


def test_a_grammar_is_enforced_by_llguidance(compiler: ConstraintCompiler) -> None:
    compiled = compiler.compile(ConstraintSpec("grammar", 'start: "(" start ")" | "ab"'))
    assert compiled.report.backend == "grammar"
    assert compiled.report.no_automaton == "grammars are not compiled to automata"
    assert compiled.begin().tables is None
    assert first_mask(compiled) == {b"(", b"a", b"ab"}


@pytest.fixture(scope="module")
def prepared() -> Iterator[ConstraintCompiler]:
    """A prepared compiler with much time and a small cache."""
    compiler = ConstraintCompiler(VOCABULARY, CompilerLimits(automaton=AutomatonLimits(seconds=60), cache_bytes=40_000))
    compiler.prepare()
    yield compiler
    compiler.close()


def test_a_prepared_compiler_has_built_what_grammars_share(prepared: ConstraintCompiler) -> None:
    shared = prepared._backends._grammars
    assert shared is not None
    assert prepared.compile(ConstraintSpec("grammar", 'start: "ab" | "c"')).report.backend == "grammar"
    assert prepared._backends._grammars is shared


def test_an_expression_too_large_for_an_automaton_becomes_a_grammar(
    compiler: ConstraintCompiler, exploded: Exploded
) -> None:
    compiled = exploded.compiled[0]
    assert compiled.report.backend == "grammar"
    assert "longer than 2 s" in (compiled.report.no_automaton or "")
    assert first_mask(compiled) == {b"0", b"1"}
    # The next constraint still compiles.
    assert compiler.compile(ConstraintSpec("regex", "ab?")).report.backend == "automaton"


def test_closing_within_the_budget_needs_an_automaton(compiler: ConstraintCompiler) -> None:
    large = "[01]*1[01]{10}"  # 2,048 states
    assert compiler.compile(ConstraintSpec("regex", large)).report.backend == "grammar"
    unique = '{"type": "array", "items": {"type": "integer"}, "uniqueItems": true}'
    for kind, source, why in (
        ("regex", large, "states"),
        ("grammar", 'start: "ab"', "grammars are not compiled to automata"),
        (
            "json_schema",
            unique,
            "#: it requires unique items, or counts items, so that what may follow depends on the items so far",
        ),
    ):
        with pytest.raises(UnsupportedConstraintError) as error:
            compiler.compile(ConstraintSpec(kind, source, close_within_budget=True))
        [violation] = error.value.violations
        assert violation.keyword == "close_within_budget"
        assert why in violation.reason


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (ConstraintSpec("regex", "(ab"), r"^is malformed: unclosed group, at '\(' in \(ab$"),
        (
            ConstraintSpec("regex", "a" * 600 + "\n" + "b" * 600 + "[c"),
            r"^is malformed: unclosed character class, at '\['",
        ),
        (ConstraintSpec("regex", "[b-a]"), "invalid character class range"),
        (ConstraintSpec("regex", "[a&&b]"), "no text matches it"),
        (ConstraintSpec("regex", "a|^b|(^c)"), "at the beginning only"),
        (ConstraintSpec("regex", "x" * (1 << 21)), "at most 1048576 are allowed"),
        (ConstraintSpec("grammar", "start: nope"), 'unknown name: "nope"'),
        (ConstraintSpec("grammar", "start: " + '"x"' * (1 << 20)), "at most 1048576 are allowed"),
        (choice(), "has no choices"),
        (choice(*map(str, range(MAX_CHOICES + 1))), "at most 20000 are allowed"),
    ],
    ids=["group", "lines", "class", "nothing", "anchor", "long", "name", "large", "none", "many"],
)
def test_the_error_says_why_a_constraint_is_invalid(
    compiler: ConstraintCompiler, constraint: ConstraintSpec, message: str
) -> None:
    with pytest.raises(InvalidConstraintError, match=message):
        compiler.compile(constraint)


def test_a_vocabulary_without_an_end_of_sequence_has_no_constraints() -> None:
    compiler = ConstraintCompiler(vocabulary("ab", eos=0))
    compiler.prepare()
    for constraint in (ConstraintSpec("regex", "[ab]{3}"), ConstraintSpec("grammar", 'start: "ab"'), choice("a")):
        with pytest.raises(InvalidConstraintError, match="the model's files name none"):
            compiler.compile(constraint)
    compiler.close()


@pytest.mark.parametrize("texts", [2000, pytest.param(5000, marks=pytest.mark.slow)])
def test_a_choice_of_many_texts_compiles(prepared: ConstraintCompiler, texts: int) -> None:
    compiled = prepared.compile(choice(*(f"item {number * 7919}" for number in range(texts))))
    assert compiled.report.backend == "automaton"


def test_the_event_loop_goes_on_while_a_constraint_is_compiled(exploded: Exploded) -> None:
    assert exploded.turns > 20  # of two hundred in the two seconds that it takes


def test_a_constraint_is_compiled_once_for_concurrent_and_later_requests(
    compiler: ConstraintCompiler, exploded: Exploded
) -> None:
    assert len({id(compiled) for compiled in exploded.compiled}) == 1
    assert compiler.compile(ConstraintSpec("regex", EXPLOSION)) is exploded.compiled[0]
    assert compiler.compile(ConstraintSpec("regex", "ab")) is not compiler.compile(
        ConstraintSpec("regex", "ab", close_within_budget=True)
    )


@pytest.mark.parametrize("grammars", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_constraints_that_compile_at_once_are_cached_too(compiler: ConstraintCompiler, grammars: int) -> None:
    for number in range(grammars):
        constraint = ConstraintSpec("grammar", f'start: "{grammars}a{number}"')
        assert compiler.submit(constraint).result(timeout=PATIENCE_S) is compiler.submit(constraint).result(
            timeout=PATIENCE_S
        )


def test_failures_are_not_cached(compiler: ConstraintCompiler) -> None:
    future = compiler.submit(ConstraintSpec("regex", "(x"))
    assert isinstance(future.exception(), InvalidConstraintError)
    assert compiler.submit(ConstraintSpec("regex", "(x")) is not future


def test_the_cache_is_bounded_in_bytes_and_evicts_the_least_recently_used(prepared: ConstraintCompiler) -> None:
    first = prepared.compile(ConstraintSpec("regex", "a{1,3}"))
    second = prepared.compile(ConstraintSpec("regex", "b{1,3}"))
    assert prepared.compile(ConstraintSpec("regex", "a{1,3}")) is first
    for number in range(8):  # more than there is room for
        prepared.compile(ConstraintSpec("regex", f"{number}{{1,3}}"))
        assert prepared.compile(ConstraintSpec("regex", "a{1,3}")) is first
    assert prepared.compile(ConstraintSpec("regex", "b{1,3}")) is not second


def test_the_cache_counts_more_than_tables_where_a_vocabulary_is_small(prepared: ConstraintCompiler) -> None:
    compiled = prepared.compile(ConstraintSpec("regex", "a{1,3}"))
    parts = pickle.dumps((compiled.report, compiled.automaton, compiled.drafts))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        copies = [pickle.loads(parts) for _ in range(50)]
        size = (tracemalloc.get_traced_memory()[0] - before) // len(copies)
    finally:
        tracemalloc.stop()
    assert size > 3 * compiled.nbytes
    cache = CompiledCache(20 * size)
    specs = [ConstraintSpec("regex", f"a{{1,{number}}}") for number in range(100)]
    for spec in specs:
        cache.put(spec, compiled)
    assert 0 < sum(cache.get(spec) is not None for spec in specs) <= 20


def test_the_cache_counts_what_reads_the_tags_of_outputs(compiler: ConstraintCompiler) -> None:
    mark = {"type": "const_string", "value": "ab" * 10}
    tag = {"type": "structural_tag", "format": {"type": "repeat", "min": 0, "max": 500, "content": mark}}
    constraint = ConstraintSpec("structural_tag", json.dumps(tag))
    compiled = compiler.compile(constraint).whole.result(timeout=PATIENCE_S)
    assert compiled.tags is not None
    cache = CompiledCache(compiled.nbytes + (1 << 20))
    cache.put(constraint, compiled)
    assert cache.get(constraint) is None  # 10,000 positions take 2 MiB and more


def compile_regex(workers: AutomatonWorkerPool, regex: str) -> TokenAutomaton:
    _, automaton = workers.compile(ConstraintSpec("regex", regex))
    if isinstance(automaton, AutomatonTooLargeError):
        raise automaton
    assert automaton is not None
    return automaton


def pool(limits: AutomatonLimits) -> AutomatonWorkerPool:
    return AutomatonWorkerPool(VOCABULARY, limits, GrammarLimits(seconds=0.15), max_workers=1)


@pytest.fixture(scope="module")
def workers() -> Iterator[AutomatonWorkerPool]:
    workers = pool(AutomatonLimits(seconds=30))
    yield workers
    workers.close()


def test_a_worker_is_reused_and_replaced_when_it_dies(workers: AutomatonWorkerPool) -> None:
    compile_regex(workers, "ab")
    (process,) = workers._processes._idle
    compile_regex(workers, "abc")
    assert workers._processes._idle == [process]
    os.kill(process.pid, signal.SIGKILL)
    assert compile_regex(workers, "abcd").states == 6
    assert workers._processes._idle != [process]


def processor_s(pid: int) -> float:
    """Seconds that a process has run."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_a_worker_that_dies_fails_only_its_job(workers: AutomatonWorkerPool) -> None:
    results: list[BaseException] = []

    def work() -> None:
        try:
            compile_regex(workers, EXPLOSION)
        except AutomatonTooLargeError as error:
            results.append(error)

    compile_regex(workers, "ab")  # the worker has started
    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: bool(workers._processes._busy))
    [process] = workers._processes._busy
    before = processor_s(process.pid)
    wait_until(lambda: processor_s(process.pid) > before + 0.2)  # it has read the constraint, and compiles
    os.kill(process.pid, signal.SIGKILL)
    thread.join()
    assert "ended with -9" in str(results[0])
    assert compile_regex(workers, "ab").states == 4


def test_memory_of_a_worker_is_bounded() -> None:
    limits = AutomatonLimits(seconds=60, memory_bytes=400 << 20)
    workers = pool(limits)
    try:
        with pytest.raises(AutomatonTooLargeError, match="more than 400 MiB"):
            compile_regex(workers, "(a{1,1000}){1,4000}")  # asks for 256 MiB at once
        assert compile_regex(workers, "ab").states == 4
    finally:
        workers.close()


def try_grammar(workers: AutomatonWorkerPool, grammar: str) -> None:
    assert workers.try_grammar(Language(None, grammar, not_regular="")) == grammar


def test_a_grammar_that_crashes_the_compiler_or_takes_long_does_no_harm(workers: AutomatonWorkerPool) -> None:
    try_grammar(workers, 'start: "a" | "b"')
    lexemes = "\n".join(f"r{i}: /[a-z]{{{i % 50 + 1},{i % 97 + 60}}}q{i}/ r{i + 1} | /z/" for i in range(4000))
    with pytest.raises(InvalidConstraintError, match=r"takes longer than 0\.15 s|overflows the compiler's stack"):
        try_grammar(workers, f'start: r0\n{lexemes}\nr4000: "x"')  # overflows llguidance's stack
    optional = "start: " + "a? " * 20_000 + '\na: "x"?'
    with pytest.raises(InvalidConstraintError, match=r"compiling it takes longer than 0\.15 s"):
        try_grammar(workers, optional)
    with pytest.raises(InvalidConstraintError, match="line 1, column"):
        try_grammar(workers, "start: (")
    try_grammar(workers, 'start: "a" | "b"')


def test_a_grammar_whose_later_masks_take_long_is_rejected() -> None:
    """The first mask takes no time."""
    nested = "\n".join(f'T{index}: ("a" | T{index - 1} "b")+ ("c" | "a")' for index in range(1, 201))
    grammar = f'start: "x" T200\nT0: "z"\n{nested}\n'
    limits = GrammarLimits(mask_seconds=0.002)
    workers = AutomatonWorkerPool(VOCABULARY, grammar_limits=limits)
    try:
        with pytest.raises(InvalidConstraintError, match=r"one mask of it takes longer than 0\.002 s"):
            try_grammar(workers, grammar)
        try_grammar(workers, 'start: "x" ("a" | "b")* "c"')
    finally:
        workers.close()


def test_a_worker_that_holds_much_memory_ends_after_its_job() -> None:
    workers = pool(AutomatonLimits(seconds=30, kept_bytes=1 << 20))
    try:
        compile_regex(workers, "ab")
        (process,) = workers._processes._idle
        assert process.wait(PATIENCE_S) == 0
        assert compile_regex(workers, "abc").states == 5
    finally:
        workers.close()


@pytest.mark.usefixtures("lowest_priority")
def test_a_worker_has_the_lowest_priority_from_its_start() -> None:
    workers = pool(AutomatonLimits())
    process, _ = workers._processes.take()
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
    workers._processes.give_back(process)
    workers.close()


def test_workers_end_when_the_pool_is_closed() -> None:
    workers = pool(AutomatonLimits(seconds=30))
    compile_regex(workers, "ab")
    (process,) = workers._processes._idle
    workers.close()
    assert process.returncode is not None
    with pytest.raises(RuntimeError, match="closed"):
        compile_regex(workers, "ab")


def test_a_compiler_that_is_dropped_leaves_no_threads() -> None:
    compiler = ConstraintCompiler(vocabulary())
    compiler.compile(ConstraintSpec("regex", "ab"))
    compiler.start()
    threads = [*compiler._queue._threads, *compiler._background._threads]
    assert threads
    del compiler
    wait_until(lambda: not any(thread.is_alive() for thread in threads))


@pytest.mark.slow
@pytest.mark.parametrize(
    "constraint",
    [
        ConstraintSpec("json_schema", '{"type": "string", "pattern": "a.{25}$"}'),
        ConstraintSpec("regex", ".*a.{18}"),
        ConstraintSpec("regex", "(a{1,1000}){1,1000}"),
        ConstraintSpec(
            "json_schema",
            json.dumps(
                {
                    "oneOf": [
                        {"required": [f"p{index}"], "properties": {f"p{index}": {"minLength": 1}, "q": {"minimum": 1}}}
                        for index in range(50)
                    ]
                }
            ),
        ),
    ],
    ids=lambda constraint: constraint.source[:20],
)
def test_explosions_take_at_most_3_seconds_of_a_processor(constraint: ConstraintSpec) -> None:
    compiler = ConstraintCompiler(VOCABULARY)
    before = os.times()
    with contextlib.suppress(InvalidConstraintError):
        assert compiler.compile(constraint).report.backend == "grammar"
    compiler.close()
    after = os.times()
    # The worker's start, with its imports, is part of it.
    assert after.children_user + after.user - before.children_user - before.user < 5


LARGE = r"\{(?:[a-c]{0,30}é?|b[d-w]{2,40})\}"


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[ConstraintCompiler]:
    """A compiler that waits for no tables."""
    limits = CompilerLimits(automaton=AutomatonLimits(awaited_states=10))
    compiler = ConstraintCompiler(VOCABULARY, limits, tmp_path)
    yield compiler
    compiler.close()


def test_outputs_of_a_large_automaton_begin_before_its_tables_are_built(hasty: ConstraintCompiler) -> None:
    with hold(hasty._workers, "tabulate") as go_on:
        starting = hasty.compile(ConstraintSpec("regex", LARGE))
        early = starting.begin()
        assert early.tables is None
        assert (starting.report.backend, starting.report.runs_on) == ("automaton", "host")
        go_on.set()
        whole = starting.whole.result()
    assert (whole.report.backend, whole.report.runs_on) == ("automaton", "device")
    assert hasty.compile(ConstraintSpec("regex", LARGE)) is whole
    late = starting.begin()
    assert late.tables is not None
    # The masks are the same at every step, whichever way an output began.
    ours, theirs = (np.empty(VOCABULARY.mask_words, np.int32) for _ in range(2))
    random = np.random.default_rng(3)
    for _ in range(60):
        early.matcher.fill_mask(ours)
        late.matcher.fill_mask(theirs)
        assert ours.tolist() == theirs.tolist()
        token = int(random.choice(sorted(allowed_ids(ours))))
        assert early.matcher.advance(token)
        assert late.matcher.advance(token)


def test_an_output_that_must_end_in_time_waits_for_the_tables(hasty: ConstraintCompiler) -> None:
    compiled = hasty.compile(ConstraintSpec("regex", LARGE, close_within_budget=True))
    assert compiled.begin(5).tables is not None
    assert compiled.shortest == 2


def test_tables_that_grow_too_large_leave_the_constraint_to_a_grammar() -> None:
    limits = CompilerLimits(automaton=AutomatonLimits(awaited_states=10, table_bytes=1 << 10))
    compiler = ConstraintCompiler(VOCABULARY, limits)
    try:
        starting = compiler.compile(ConstraintSpec("regex", LARGE))
        whole = starting.whole.result()
        assert (whole.report.backend, whole.report.runs_on) == ("grammar", "host")
        assert "too many classes" in (whole.report.no_automaton or "")
        assert starting.begin().matcher.mask_batcher is whole.begin().matcher.mask_batcher
    finally:
        compiler.close()


def test_a_constraint_whose_tables_failed_is_compiled_again(hasty: ConstraintCompiler) -> None:
    spec = ConstraintSpec("regex", LARGE)
    with hold(hasty._workers, "tabulate", RuntimeError("no")) as go_on:
        starting = hasty.compile(spec)
        go_on.set()
        assert isinstance(starting.whole.exception(), RuntimeError)
    assert starting.begin().tables is None
    again = hasty.compile(spec)
    assert again is not starting
    assert again.whole.result().report.runs_on == "device"


def test_later_compilers_find_the_tables_in_the_folder(hasty: ConstraintCompiler, tmp_path: Path) -> None:
    specs = [ConstraintSpec("regex", LARGE), ConstraintSpec("regex", "ab+")]
    built = [hasty.compile(spec).whole.result() for spec in specs]
    wait_until(lambda: len(list(tmp_path.glob("*.tables"))) == 2)
    later = ConstraintCompiler(VOCABULARY, cache_folder=tmp_path)
    try:
        for spec, one in zip(specs, built, strict=True):
            found = later.compile(spec)
            assert replace(found.report, compile_s=0) == replace(one.report, compile_s=0)
            assert found.nbytes == one.nbytes
        assert not later._workers._processes._idle
    finally:
        later.close()


LIMITED = ConstraintSpec("regex", LARGE, reasoning=ReasoningSpec("<r>", "</r>", limited=True))
TAG = {"type": "tag", "begin": "<r>", "content": {"type": "regex", "pattern": LARGE}, "end": "</r>"}


@pytest.mark.parametrize(
    ("spec", "runs_on"),
    [
        (LIMITED, "device"),  # its budget waits for the tables
        (replace(LIMITED, reasoning=ReasoningSpec("<r>", "</r>", limited=False)), "host"),
        (ConstraintSpec("structural_tag", json.dumps({"type": "structural_tag", "format": TAG})), "host"),
    ],
    ids=["reasoning with a limit", "reasoning", "structural tag"],
)
def test_reasoning_and_tags_begin_on_the_host_and_come_from_the_folder(
    spec: ConstraintSpec, runs_on: str, tmp_path: Path
) -> None:
    limits = CompilerLimits(automaton=AutomatonLimits(awaited_states=10))
    found: list[CompiledConstraint] = []
    for process in range(2):
        compiler = ConstraintCompiler(VOCABULARY, limits, tmp_path)
        try:
            with hold(compiler._workers, "tabulate") as go_on:
                compiled = compiler.compile(spec)
                assert compiled.report.runs_on == ("device" if process else runs_on)
                begun = compiled.begin(None, 20 if spec is LIMITED else None)
                go_on.set()
                found += [compiled, compiled.whole.result()]
            wait_until(lambda: bool(list(tmp_path.glob("*.tables"))))
        finally:
            compiler.close()
        late = found[-1].begin(None, 20 if spec is LIMITED else None)
        words, masks = (np.empty(VOCABULARY.mask_words, np.int32) for _ in range(2))
        for token in VOCABULARY.encode("<r>{ab}</r>" if spec.reasoning is None else "<r>a</r>{ab}"):
            begun.matcher.fill_mask(words)
            late.matcher.fill_mask(masks)
            assert words.tolist() == masks.tolist()
            assert begun.matcher.advance(token)
            assert late.matcher.advance(token)
    for compiled in found:
        assert compiled.tags is not None
        walk = compiled.tags.begin()
        text = "<r>{ab}</r>" if spec.reasoning is None else "<r>x</r>{ab}"
        walk.feed(text)
        assert [span.end for span in walk.spans] == [text.index("</r>") + 4]
    assert not compiler._workers._processes._idle


def test_a_started_compiler_has_a_worker_and_its_tree_of_tokens() -> None:
    compiler = ConstraintCompiler(VOCABULARY)
    compiler.start()
    compiler._background.submit("", lambda _: None).join().result()
    [process] = compiler._workers._processes._idle
    assert compiler._tokens is not None
    assert compiler.compile(ConstraintSpec("regex", "ab")).report.runs_on == "device"
    assert compiler._workers._processes._idle == [process]
    compiler.close()
    assert process.returncode is not None


def allowed_ids(words: np.ndarray) -> set[int]:
    return allowed(words, len(VOCABULARY.tokens))


@contextmanager
def hold(workers: AutomatonWorkerPool, method: str, error: Exception | None = None) -> Iterator[threading.Event]:
    """Keep a method of the workers waiting until the event is set; then it may fail."""
    go_on, real = threading.Event(), getattr(workers, method)

    def held(*arguments: object, **keywords: object) -> object:
        go_on.wait()
        if error is not None:
            raise error
        return real(*arguments, **keywords)

    setattr(workers, method, held)
    try:
        yield go_on
    finally:
        setattr(workers, method, real)
