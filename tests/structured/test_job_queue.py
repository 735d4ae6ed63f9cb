"""Compilations take turns between callers, are bounded, and end when nobody waits for them."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from patience import PATIENCE_S, until
from small_vocabulary import vocabulary

from draftline.engine.errors import QueueFullError
from draftline.engine.params import Constraint
from draftline.engine.request.constraints import compile_constraint
from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.compiler import CompilerLimits, ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec, ReasoningSpec, language
from draftline.structured.errors import InvalidConstraintError, JobQueueFullError, UnsupportedConstraintError
from draftline.structured.job_queue import JobQueue, QueuedJob

EXPLOSION = "[01]*1[01]{4%d}"


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


def work(ran: list[str], name: str, gate: threading.Event) -> Callable[[QueuedJob[str]], str]:
    def run(job: QueuedJob[str]) -> str:
        gate.wait()
        ran.append(name)
        return name

    return run


def test_callers_take_turns(gate: threading.Event) -> None:
    queue: JobQueue[str] = JobQueue(max_threads=1, max_waiting=64, waiting="jobs wait")
    ran: list[str] = []
    busy = threading.Event()
    queue.submit("d", lambda _: str(busy.set() or gate.wait()))
    assert busy.wait(PATIENCE_S)  # so that the only thread has none of the others
    names = ["a0", "a1", "a2", "a3", "b0", "b1", "c0"]
    futures = [queue.submit(name[0], work(ran, name, gate)).join() for name in names]
    gate.set()
    assert [future.result(timeout=PATIENCE_S) for future in futures if future is not None] == names
    assert ran == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]
    queue.close()


def test_jobs_that_come_together_run_together() -> None:
    """Also where a thread is idle, which does not take both."""
    queue: JobQueue[int] = JobQueue(max_threads=2, max_waiting=8, waiting="jobs wait")
    both = threading.Barrier(2)
    for _ in range(3):
        alone = queue.submit("a", lambda job: 0).join()
        assert alone is not None
        alone.result(PATIENCE_S)
        futures = [queue.submit("a", lambda job: both.wait(PATIENCE_S)).join() for _ in range(2)]
        assert {future.result(PATIENCE_S) for future in futures if future is not None} == {0, 1}
    queue.close()


def test_what_nobody_waits_for_is_dropped_and_makes_room(gate: threading.Event) -> None:
    queue: JobQueue[str] = JobQueue(max_threads=1, max_waiting=2, waiting="jobs wait")
    ran: list[str] = []
    taken = threading.Event()

    def hold(job: QueuedJob[str]) -> str:
        taken.set()
        return work(ran, "running", gate)(job)

    running = queue.submit("a", hold).join()
    assert running is not None
    assert taken.wait(PATIENCE_S)
    waiting = [queue.submit("a", work(ran, name, gate)) for name in ("one", "two")]
    futures = [job.join() for job in (*waiting, waiting[1])]
    with pytest.raises(JobQueueFullError, match="2 jobs wait"):
        queue.submit("b", work(ran, "refused", gate))
    assert futures[0] is not None
    assert futures[2] is not None
    assert futures[0].cancel()
    assert waiting[0].is_over
    assert waiting[0].join() is None
    assert futures[2].cancel()
    assert not waiting[1].is_over  # another waits for it
    last = queue.submit("b", work(ran, "last", gate)).join()
    gate.set()
    assert last is not None
    assert last.result(timeout=PATIENCE_S) == "last"
    queue.close()
    assert ran == ["running", "two", "last"]
    with pytest.raises(RuntimeError, match="closed"):
        queue.submit("a", work(ran, "late", gate))


def test_a_running_job_is_told_to_stop_once() -> None:
    stops: list[str] = []
    job: QueuedJob[str] = QueuedJob(lambda job: "")
    first, second = job.join(), job.join()
    assert first is not None
    assert second is not None
    job.on_abandon(lambda: stops.append("stopped"))
    first.cancel()
    assert stops == []
    second.cancel()
    assert stops == ["stopped"]
    job.on_abandon(lambda: stops.append("at once"))
    assert stops == ["stopped", "at once"]


@pytest.fixture
def compiler() -> Iterator[ConstraintCompiler]:
    limits = CompilerLimits(max_waiting=8, automaton=AutomatonLimits(seconds=10.0))
    compiler = ConstraintCompiler(vocabulary("ab"), limits)
    yield compiler
    compiler.close()


async def test_calls_whose_deadlines_have_passed_hold_up_nobody(compiler: ConstraintCompiler) -> None:
    """Eight explosions take two workers for 10 s of a processor each."""
    await compile_constraint(compiler, Constraint(regex="warm[a-z]"), "attacker")
    results: list[str] = []
    compiler.observer = lambda result, seconds: results.append(result)
    attacks = [
        asyncio.create_task(compile_constraint(compiler, Constraint(regex=EXPLOSION % number), "attacker"))
        for number in range(8)
    ]
    await until(lambda: len(compiler._workers._processes._busy) == 2)
    assert compiler.in_flight == 8
    for attack in attacks:
        attack.cancel()
    await until(lambda: not compiler.in_flight)  # neither those that ran nor those that waited
    before = os.times()
    compiled = await compile_constraint(compiler, Constraint(regex="a|b"), "victim")
    after = os.times()
    assert compiled.report.backend == "automaton"
    await until(lambda: len(results) >= 3)
    assert sorted(set(results) - {"tables"}) == ["automaton", "cancelled"]
    assert after.children_user - before.children_user < 8  # the first two alone would take 20 s of a processor
    assert all(
        isinstance(result, asyncio.CancelledError) for result in await asyncio.gather(*attacks, return_exceptions=True)
    )
    # What was given up can be asked for again.
    again = compiler.submit(ConstraintSpec("regex", EXPLOSION % 0))
    assert not again.done()
    again.cancel()


async def test_too_many_constraints_are_refused_with_a_delay(compiler: ConstraintCompiler) -> None:
    attacks = [compiler.submit(ConstraintSpec("regex", EXPLOSION % number), "attacker") for number in range(2)]
    await until(lambda: not (compiler._queue._idle or len(compiler._queue._threads) < 2 or compiler._queue._queues))
    attacks += [compiler.submit(ConstraintSpec("regex", EXPLOSION % number), "attacker") for number in range(2, 10)]
    with pytest.raises(QueueFullError, match="8 constraints wait to be compiled") as caught:
        await compile_constraint(compiler, Constraint(regex="a|b"), "victim")
    assert caught.value.retry_after_s == 1.0
    for attack in attacks:
        attack.cancel()


def test_a_schema_is_read_in_a_worker_and_its_errors_come_back_whole(compiler: ConstraintCompiler) -> None:
    schema = '{"allOf": [{"uniqueItems": true, "contains": {"$ref": "#/nowhere"}}, {"type": "array", "if": 1}]}'
    for source in (schema, '{"type": "strin"}'):
        spec = ConstraintSpec("json_schema", source)
        with pytest.raises((InvalidConstraintError, UnsupportedConstraintError)) as here:
            language(spec)
        with pytest.raises(type(here.value)) as there:
            compiler.compile(spec)
        assert str(there.value) == str(here.value)
        assert getattr(there.value, "violations", None) == getattr(here.value, "violations", None)


READING = (
    "json_schema",
    "regular",
    "tags.lark",
    "tags.determinize",
    "tags.xgrammar",
    "grammar.lark_rules",
    "constraint.language",
)
"""Modules and functions of `draftline.structured` whose work grows with a constraint."""

OPEN_OBJECT = '{"type": "object", "required": ["n"]}'
TAGS = {
    "type": "tag",
    "begin": "<t>",
    "content": {"type": "json_schema", "json_schema": json.loads(OPEN_OBJECT)},
    "end": "</t>",
}


@pytest.mark.parametrize(
    ("constraint", "backend"),
    [
        (ConstraintSpec("choice", '["a", "b"]'), "automaton"),
        (ConstraintSpec("regex", "a|b"), "automaton"),
        (ConstraintSpec("json_schema", '{"enum": [1, 2]}'), "automaton"),
        (ConstraintSpec("json_schema", OPEN_OBJECT), "grammar"),
        (ConstraintSpec("json_schema", OPEN_OBJECT, reasoning=ReasoningSpec("", "</think>", True)), "grammar"),
        (
            ConstraintSpec(
                "grammar", "start: r0\n" + "\n".join(f'r{i}: "a" | r{i + 1}' for i in range(9)) + '\nr9: "b"'
            ),
            "grammar",
        ),
        (ConstraintSpec("structural_tag", json.dumps({"type": "structural_tag", "format": TAGS})), "grammar"),
    ],
    ids=["choice", "regex", "regular schema", "schema", "reasoning", "grammar", "tags"],
)
def test_constraints_are_read_in_workers_alone(constraint: ConstraintSpec, backend: str) -> None:
    """Under the interpreter's lock of a process that streams, reading them would hold up the streams."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}")

    threading.setprofile(note)
    try:
        compiler = ConstraintCompiler(vocabulary("ab"))
        compiled = compiler.compile(constraint)
    finally:
        threading.setprofile(None)
    compiler.close()
    assert compiled.report.backend == backend
    assert "draftline.structured.compiler._compile" in called
    assert not [name for name in called if name.startswith(tuple(f"draftline.structured.{one}" for one in READING))]
