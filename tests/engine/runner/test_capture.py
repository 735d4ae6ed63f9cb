"""How a graph takes its inputs from the host and hands over results, with graphs that run on the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from host_graphs import HostRecorder

from draftline.engine.runner import capture
from draftline.engine.runner.capture import Captures, InputGraph, Late, ResultStages, WriteGraph, WritingInputGraph

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpinned(words: int) -> torch.Tensor:
        return torch.zeros((capture._STAGES, words), dtype=torch.int64)

    monkeypatch.setattr(capture, "_pinned", unpinned)


def recorded(graph: InputGraph) -> list[list[int]]:
    """Record a graph that only notes its inputs; what it has noted."""
    seen: list[list[int]] = []

    graph.record(HostRecorder(), lambda: seen.append(graph.tensor.tolist()))  # type: ignore[arg-type]  # its graphs are no device's
    return seen


def counted_from(first: int) -> Callable[[np.ndarray], None]:
    """Fill inputs with ``first`` and the numbers behind it."""

    def fill(inputs: np.ndarray) -> None:
        inputs[:] = range(first, first + len(inputs))

    return fill


def test_every_launch_has_its_own_inputs() -> None:
    graph = InputGraph(3, CPU)
    seen = recorded(graph)
    for launch in range(2 * capture._STAGES + 1):
        graph.launch(counted_from(launch))
    assert seen == [[launch, launch + 1, launch + 2] for launch in range(2 * capture._STAGES + 1)]


def test_a_failed_fill_takes_no_turn() -> None:
    graph = InputGraph(1, CPU)
    seen = recorded(graph)

    def fail(inputs: np.ndarray) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        graph.launch(fail)
    graph.launch(counted_from(7))
    assert seen == [[7]]


def test_every_launch_writes_its_own_words() -> None:
    out = torch.zeros(50, dtype=torch.int32)
    graph = WriteGraph(1 + 128 + 64, out, HostRecorder())  # type: ignore[arg-type]

    def fill_with(launch: int) -> Callable[[np.ndarray], None]:
        def fill(message: np.ndarray) -> None:
            message[:2] = 1, launch
            message[129:].view(np.int32)[0] = launch + 1

        return fill

    for launch in range(2 * capture._STAGES + 1):
        graph.launch(fill_with(launch))
    assert out.tolist() == [*range(1, 2 * capture._STAGES + 2), *[0] * (49 - 2 * capture._STAGES)]


def test_every_launch_of_a_whole_step_has_its_own_inputs_and_writes() -> None:
    out = torch.zeros(50, dtype=torch.int32)
    graph = WritingInputGraph(3, 1 + 128 + 64, out)
    seen = recorded(graph)

    def fill_with(launch: int) -> Callable[[np.ndarray], None]:
        def fill(message: np.ndarray) -> None:
            message[:5] = launch, launch + 1, launch + 2, 1, launch
            message[3 + 129 :].view(np.int32)[0] = launch + 1

        return fill

    launches = range(2 * capture._STAGES + 1)
    for launch in launches:
        graph.launch(fill_with(launch))
    assert seen == [[launch, launch + 1, launch + 2] for launch in launches]
    assert out.tolist() == [*range(1, len(launches) + 1), *[0] * (50 - len(launches))]


def test_results_are_those_of_the_last_launch_whichever_graph_and_capture_it_was() -> None:
    results = ResultStages(samples=6, rows=3, moments=2, device=CPU)
    value = 0

    def deliver() -> None:
        accepted = torch.tensor([value % 3, 1], dtype=torch.int32)
        results.deliver(torch.arange(4) + value, accepted, torch.tensor([100 + value, 0]))

    recorder = HostRecorder()
    graph, _ = recorder.record(deliver)
    earlier = None
    for value in range(10, 20):
        if value == 13:  # the first step with other sampling: captured while the step before it is in flight
            graph, _ = recorder.record(deliver)
            assert earlier is not None
            assert earlier.tolist() == [12, 13, 14]
        graph.replay()
        tokens, kept, moments = results.take(3, 2)
        assert tokens.tolist() == [value, value + 1, value + 2]
        assert kept.tolist() == [value % 3, 1]
        assert moments[0] == 100 + value
        if earlier is not None:
            assert earlier.tolist() == [value - 1, value, value + 1]
        earlier = tokens


def test_a_late_graph_is_captured_once_at_its_first_use() -> None:
    calls: list[int] = []
    late = Late("a graph", lambda: calls.append(1) or len(calls))
    assert (late.tried, calls) == (False, [])
    assert (late.find(), late.require(), late.find(), late.tried) == (1, 1, 1, True)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("allocator"), RuntimeError("CUDA error: out of memory")], ids=["torch", "driver"]
)
def test_a_graph_without_memory_is_tried_once_unless_it_is_required(
    error: RuntimeError, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def fail() -> int:
        calls.append(1)
        raise error

    late = Late("sampling", fail)
    assert late.find() is late.find() is None
    assert len(calls) == 1
    assert "no memory is left for the CUDA graph of sampling" in caplog.text
    with pytest.raises(RuntimeError, match=str(error)):
        late.require()


def test_a_capture_whose_end_fails_for_lack_of_memory_lacks_it() -> None:
    def fail() -> int:
        try:
            raise torch.OutOfMemoryError
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    assert Late("a graph", fail).find() is None


def test_other_faults_of_a_capture_are_raised() -> None:
    def fail() -> int:
        raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        Late("a graph", fail).find()


def test_waiting_graphs_are_captured_in_order_unless_a_step_is_quicker() -> None:
    order: list[str] = []
    graphs = [Late(name, partial(order.append, name)) for name in "abcd"]
    families = [[Late(name, partial(order.append, name)) for name in names] for names in ("xyz", "uv")]
    captures = Captures(graphs, families)
    graphs[2].find()
    assert captures.left == 3
    assert captures.capture_next()
    assert (order, captures.left) == (["c", "a"], 2)
    captures.capture_all()
    assert (order, captures.left) == (["c", "a", "b", "d"], 0)
    assert not captures.capture_next()
    families[0][1].find()
    assert captures.left == 2, "one of a family was asked for"
    assert captures.capture_next()
    assert captures.left == 1
    captures.capture_all()
    assert (order[4:], captures.left) == (["y", "x", "z"], 0)
    assert not captures.capture_next()
