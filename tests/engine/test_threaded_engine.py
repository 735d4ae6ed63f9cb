"""The step thread's end: what it tells of itself, and of the requests that it had."""

from __future__ import annotations

import queue
import threading
import time
from copy import copy
from typing import Any, cast

import pytest
import torch
from byte_compilers import byte_compiler
from fake_engine import ByteTokenizer, fake_info
from patience import PATIENCE_S
from tiny import tiny_core

from draftline.engine.bench.readiness import wait_until_ready
from draftline.engine.core import Core
from draftline.engine.errors import DeviceLostError, EngineStoppedError
from draftline.engine.outputs import Failed, Finished, Update
from draftline.engine.params import Constraint, SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.backlog import Backlog
from draftline.engine.request.request import Request, RequestBuilder
from draftline.engine.request.sequence import Row
from draftline.engine.runner.capture import Captures, Late
from draftline.engine.runner.executor import Executors
from draftline.engine.runner.launched_step import LaunchedStep
from draftline.engine.stats import EngineStats
from draftline.engine.threaded_engine import ThreadedEngine


class BrokenCore:
    """A core whose steps break in a way that none should."""

    def __init__(self) -> None:
        self.info = fake_info()
        self.tokenizer = ByteTokenizer()
        self.compiler = byte_compiler()
        self.journal = None
        self.requests: list[Request] = []
        self.backlog = Backlog()
        self.now = time.monotonic
        self.compiling: list[int] = []
        self.fault: BaseException = KeyError("the scheduler lost a block")

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    def capture_next(self) -> bool:
        """It has no graphs."""
        return False

    def when_lost(self, call: object) -> None:
        """It has no other processes."""

    def check_alive(self) -> None:
        """It has no other processes."""

    def close(self) -> None:
        """It has no other processes."""

    def tell(self) -> None:
        """It has read no step."""

    def is_live(self, request_id: str) -> bool:
        return any(request.request_id == request_id for request in self.requests)

    def add(self, request: Request) -> None:
        self.requests.append(request)

    def cancel(self, request_id: str) -> None:
        pass

    def step(self) -> None:
        raise self.fault

    def fail_all(self, error: Exception) -> None:
        for request in self.requests:
            request.sink([(request.request_id, Failed(error))])

    def stats(self) -> EngineStats:
        return EngineStats(
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, kernels_compiling=self.compiling.pop(0) if self.compiling else 0
        )


def start(core: BrokenCore | None = None) -> ThreadedEngine:
    return ThreadedEngine(cast(Core, core or BrokenCore()), max_waiting=8, max_waiting_tokens=64, ageing_s=5.0)


class Panic(BaseException):
    """As native code in Rust raises it: no Exception."""


@pytest.mark.parametrize("fault", [KeyError("the scheduler lost a block"), Panic("index out of bounds")])
def test_a_fault_of_the_engine_itself_stops_it_and_says_so(fault: BaseException) -> None:
    core = BrokenCore()
    core.fault = fault
    engine = start(core)
    updates: queue.SimpleQueue[Update] = queue.SimpleQueue()
    engine.submit("a", GenerateRequest("x"), lambda pairs: updates.put(pairs[0][1]))
    reason = engine.stopped.result(timeout=PATIENCE_S)
    assert str(reason) == f"the engine stopped after a fault: {fault!r}"
    failed = updates.get(timeout=PATIENCE_S)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, EngineStoppedError)
    with pytest.raises(EngineStoppedError):
        engine.submit("b", GenerateRequest("x"), lambda pairs: None)
    engine.close()


def test_an_engine_that_is_closed_stopped_without_a_fault() -> None:
    engine = start()
    assert not engine.stopped.done()
    engine.close()
    assert engine.stopped.result(timeout=PATIENCE_S) is None


def test_statistics_of_an_idle_engine_show_the_kernels_that_compile() -> None:
    core = BrokenCore()
    engine = start(core)
    core.compiling = [2, 1]
    assert engine.stats().kernels_compiling == 2
    wait_until_ready(engine.stats)
    assert not core.compiling
    engine.close()


def test_graphs_are_captured_while_there_is_no_request() -> None:
    core = tiny_core()
    answered, second = threading.Event(), threading.Event()
    captured: list[bool] = []

    def capture() -> None:
        captured.append(core.has_work)
        if len(captured) == 2:
            second.set()
            assert answered.wait(PATIENCE_S)

    core._runner.captures = Captures([Late("a graph", capture) for _ in range(4)])
    with ThreadedEngine(core, max_waiting=8, max_waiting_tokens=64, ageing_s=5.0) as engine:
        assert second.wait(PATIENCE_S)
        assert engine.stats().graphs_to_capture == 2
        ended = threading.Event()
        prompt = GenerateRequest(tuple(range(5, 30)), SamplingParams(max_tokens=3))
        # The request is there when the second capture ends.
        engine.submit("a", prompt, lambda pairs: [ended.set() for _, update in pairs if update.ends_output])
        assert engine.stats().getting_ready
        answered.set()
        assert ended.wait(PATIENCE_S)
        wait_until_ready(engine.stats)
        assert captured == [False] * 4
        assert engine.stats().graphs_to_capture == 0


@pytest.mark.parametrize(("steps_ahead", "expected"), [(0, [0.5, 0.5]), (1, [8.0, 0.0])])
def test_what_a_step_captures_is_not_part_of_its_time(steps_ahead: int, expected: list[float]) -> None:
    """The next step of its shape does not take so long, and decisions go by times.

    Steps end at the end of their launch. Ahead, the host sees the first one's end after the second one's launch.
    """
    now = 0.0
    core = tiny_core(clock=lambda: now, steps_ahead=steps_ahead)
    measured: list[float] = []
    core._policy.observe_step = lambda plan, caught_up, seconds: measured.append(seconds)  # type: ignore[method-assign]
    runner = core._runner
    launch = runner.launch

    def capture() -> None:
        runner.captures._taken.seconds += 7.0

    def launched(*given: Any) -> LaunchedStep:
        nonlocal now
        runner.captures._taken.seconds += 5.0  # of another step, before
        step = launch(*given)
        now += 7.0 + 0.5
        step.moments = torch.tensor([int(now * 1e9)])
        return step

    runner.launch = launched  # type: ignore[method-assign]
    forward = runner._executors.eager.forward

    def captured_forward(rows: tuple[Row, ...]) -> Any:
        capture()
        return forward(rows)

    runner._executors.eager.forward = captured_forward  # type: ignore[method-assign]
    builder = RequestBuilder(core.info, core.tokenizer, ageing_s=0.0, compiler=core.compiler)
    sampling = SamplingParams(max_tokens=2, ignore_eos=True)
    core.add(builder.build("a", GenerateRequest((5, 6), sampling), lambda _: None, 0.0))
    while core.has_work:
        core.step()
    assert measured == expected


def test_a_capture_that_loses_the_device_ends_the_engine() -> None:
    core = BrokenCore()

    def capture_next() -> bool:
        raise DeviceLostError("gone")

    core.capture_next = capture_next  # type: ignore[method-assign]
    engine = start(core)
    assert "gone" in str(engine.stopped.result(timeout=PATIENCE_S))
    engine.close()


def test_an_output_that_has_ended_is_finished_though_the_device_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    core = tiny_core(steps_ahead=1)
    launch = core._runner.launch

    def launched(*given: Any) -> LaunchedStep:
        if any(output.has_ended for output in core._live.outputs.values()):
            raise RuntimeError("a kernel failed")
        return launch(*given)

    def lost() -> None:
        raise DeviceLostError("gone")

    monkeypatch.setattr(core._runner, "launch", launched)
    monkeypatch.setattr(core._runner, "check_device", lost)
    ends: dict[str, type[Update]] = {}
    with ThreadedEngine(core, max_waiting=8, max_waiting_tokens=64, ageing_s=5.0) as engine:
        with engine._wake:  # both begin in one step
            for name, tokens in (("short", 2), ("long", 20)):
                prompt = GenerateRequest((5, 6), SamplingParams(max_tokens=tokens, ignore_eos=True))
                engine.submit(name, prompt, lambda pairs: ends.update((of, type(update)) for of, update in pairs))
        assert "gone" in str(engine.stopped.result(timeout=PATIENCE_S))
    assert ends == {"short": Finished, "long": Failed}


def test_statistics_show_a_flush_before_it_is_answered() -> None:
    with ThreadedEngine(tiny_core(), max_waiting=8, max_waiting_tokens=64, ageing_s=5.0) as engine:
        updates: queue.SimpleQueue[tuple[str, Update]] = queue.SimpleQueue()
        prompt = GenerateRequest(tuple(range(5, 30)), SamplingParams(max_tokens=1))
        engine.submit("a", prompt, lambda pairs: [updates.put(pair) for pair in pairs])
        while not isinstance(updates.get(timeout=PATIENCE_S)[1], Finished):
            pass
        answered: queue.SimpleQueue[EngineStats] = queue.SimpleQueue()
        with engine._wake:  # the step thread does not begin before it is known where to look
            engine.flush_prefix_cache().add_done_callback(lambda flushed: answered.put(engine.stats()))
        stats = answered.get(timeout=PATIENCE_S)
        assert (stats.free_blocks, stats.cached_blocks) == (stats.total_blocks, 0)


@pytest.mark.parametrize(
    ("graphs", "constraint", "long"),
    [
        pytest.param(False, None, [True, True, True], id="by operation"),
        pytest.param(True, None, [True, False, False], id="decodes by graphs, and a prompt that none holds"),
        pytest.param(
            True, Constraint(grammar="start: /[ab]{100}/"), [True, True, True], id="masks that wait for tokens"
        ),
    ],
)
def test_other_threads_run_when_a_step_is_launched(
    graphs: bool, constraint: Constraint | None, long: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would slow a short launch down, and should not wait for a long one. In the end nothing waits for a next step."""
    events: list[str] = []
    core = tiny_core(steps_ahead=1)
    runner = core._runner
    if graphs:
        eager, shapes = runner._executors.eager, runner._executors.shapes
        runner._executors = Executors(eager, shapes, dict.fromkeys(shapes.decodes, copy(eager)))
    launch = runner.launch

    def launched(*given: Any) -> LaunchedStep:
        step = launch(*given)
        events.append("launched")
        return step

    monkeypatch.setattr(runner, "launch", launched)
    core.when_launched(lambda: events.append("others"))
    builder = RequestBuilder(core.info, core.tokenizer, ageing_s=0.0, compiler=core.compiler)
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    wanted = GenerateRequest(tuple(range(5, 30)), sampling, constraint=constraint)
    core.add(builder.build("a", wanted, lambda _: events.append("updates"), core.now()))
    while core.has_work:
        core.step()

    def launch_of(is_long: bool, *told: str) -> list[str]:
        return [*told, "others", "launched", "others"] if is_long else ["launched", *told, "others"]

    # Three tokens; each is read when the next step is launched, and told when the one after it is, or nothing is left.
    first, second, third = long
    assert events == [
        *launch_of(first), *launch_of(second), *launch_of(third, "updates"), "updates", "others", "updates", "others",
    ]  # fmt: skip
