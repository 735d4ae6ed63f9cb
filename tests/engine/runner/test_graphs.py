"""What the host writes for a graph, and which graph a step runs in."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from host_graphs import HostGraph, HostRecorder
from random_checkpoint import llama

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Row, Sequence
from draftline.engine.runner import warmup
from draftline.engine.runner.capture import Late
from draftline.engine.runner.executor import ForwardResult
from draftline.engine.runner.graphs import executor as graphs
from draftline.engine.runner.graphs import step_graphs
from draftline.engine.runner.graphs.executor import GraphExecutor
from draftline.engine.runner.graphs.inputs import draft_words, fill_drafts, fill_forward, forward_words
from draftline.engine.runner.graphs.step_graphs import StepGraphs, largest_shapes, steps_in_parts, whole_steps
from draftline.engine.runner.shapes import StepShape, StepShapes, launch_bound_tokens
from draftline.kernels.slots import SamplingFeatures
from draftline.kernels.triton.inputs.gather import FROM_NEWEST
from draftline.spec.no_drafter import NoDrafter


def row(slot: int, start: int, count: int = 1, pending: int = 1, drafts: int = 0, logprobs: int | None = None) -> Row:
    """A row of a sequence with ``pending`` tokens to compute."""
    known = start + pending
    sampling = SamplingParams(prompt_logprobs=logprobs)
    sequence = Sequence("r", 0, [0] * known, known, sampling, seed=0, max_len=known + 9, order=0.0)
    return Row(sequence, slot, start, count, known, drafts, drafts + 1 if count == pending else 0)


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize(("size", "count"), [(1, 1), (4, 0), (4, 3), (5, 5), (8, 5)])
def test_a_plan_has_rows_and_padding(size: int, count: int, drafts: int) -> None:
    rows = tuple(row(slot=9 - i, start=20 + 3 * i, drafts=min(i, drafts)) for i in range(count))
    padding = size - count
    inputs = np.full(forward_words(size), 77, np.int64)  # what an earlier step has left
    fill_forward(inputs, size, rows)
    assert inputs[:size].tolist() == [r.slot for r in rows] + [0] * padding
    # Of query tokens, and of logits.
    begins = list(accumulate([1 + r.drafts for r in rows] + [0] * padding, initial=0))
    plan = inputs[size:].view(np.int32)
    assert plan[: 3 * size + 2].tolist() == [*begins, *begins, *[FROM_NEWEST] * count, *[0] * padding]


def test_a_plan_with_prompts_says_where_they_start() -> None:
    rows = (row(0, 30, drafts=2), row(1, 64, count=20, pending=50), row(2, 0, count=7, pending=7))
    inputs = np.full(forward_words(4), 77, np.int64)
    fill_forward(inputs, 4, rows)
    plan = inputs[4:].view(np.int32)
    assert plan[:5].tolist() == [0, 3, 23, 30, 30]
    assert plan[5:10].tolist() == [0, 3, 3, 4, 4]
    assert plan[10:14].tolist() == [FROM_NEWEST, 64, 0, 0]


def test_drafts_of_rows_and_padding() -> None:
    inputs = np.full(draft_words(3), 77, np.int64)
    fill_drafts(inputs, 3, (row(5, 9, drafts=2), row(4, 9, drafts=1)))
    assert inputs[:3].tolist() == [5, 4, 0]
    assert inputs[3:].view(np.int32)[:3].tolist() == [2, 1, 0]


@pytest.mark.parametrize("size", range(1, 9))
def test_drafts_behind_a_plan_have_their_alignment_and_the_plan_has_room(size: int) -> None:
    assert forward_words(size) * 8 % 16 == 0
    assert (forward_words(size) - size) * 2 >= 3 * size + 2


def test_a_decode_runs_in_the_smallest_shape_that_holds_it() -> None:
    shapes = StepShapes(max_rows=256, max_drafts=5)
    assert shapes.draft_lens == (0, 1, 2, 3, 4, 5)
    assert shapes.of_step(tuple(row(i, 5) for i in range(5))) == StepShape.decode(6, 0)
    assert shapes.of_step(tuple(row(i, 5, drafts=i) for i in range(4))) == StepShape.decode(4, 3)
    assert shapes.of_step(tuple(row(i, 5, drafts=6) for i in range(4))) is None
    assert shapes.of_step(tuple(row(i, 5) for i in range(256))) == StepShape.decode(256, 0)
    assert shapes.of_step(tuple(row(i, 5) for i in range(257))) is None
    assert shapes.of_step(tuple(row(i, 5, drafts=1) for i in range(200))) is None
    assert set(StepShapes(3, 0).decodes) == {StepShape.decode(n, 0) for n in (1, 2, 3)}
    assert StepShapes(3, 0).prompts == []


@pytest.mark.parametrize(
    ("others", "shape"),
    [
        pytest.param([row(1, 0, 40, 40)], StepShape.with_prompts(8, 0, 64), id="a prompt"),
        pytest.param([row(1, 0, 40, 90)], StepShape.with_prompts(8, 0, 64), id="a chunk"),
        pytest.param([row(1, 5, 1, 2)], StepShape.with_prompts(8, 0, 64), id="a chunk of one token"),
        pytest.param([row(1, 5, 2, 2)], StepShape.with_prompts(8, 0, 64), id="two tokens"),
        pytest.param([row(1, 0, 40, 40), row(2, 9, drafts=1)], StepShape.with_prompts(8, 4, 64), id="beside drafts"),
        pytest.param([row(i, 0, 15, 15) for i in range(1, 11)], StepShape.with_prompts(32, 0, 192), id="ten prompts"),
        pytest.param([row(1, 0, 200, 200)], StepShape.with_prompts(32, 0, 256), id="many tokens of a few rows"),
        pytest.param([row(1, 0, 256, 256)], None, id="too many tokens"),
        pytest.param([row(1, 0, 40, 40, logprobs=1)], None, id="log-probabilities of the prompt"),
    ],
)
def test_a_step_with_prompts_runs_in_a_shape_with_more_tokens(others: list[Row], shape: StepShape | None) -> None:
    shapes = StepShapes(max_rows=64, max_drafts=4, prompt_tokens=300)
    chosen = shapes.of_step((row(0, 3), *others))
    assert chosen == shape
    assert chosen is None or chosen in shapes.prompts


def test_a_shape_bounds_every_row() -> None:
    assert StepShape.decode(3, 2).query_lens == (3, 3, 3)
    assert StepShape.with_prompts(3, 2, 64).query_lens == (64, 3, 3)
    assert StepShape.with_prompts(3, 2, 64).samples == 9
    assert StepShape.with_prompts(128, 4, 64).samples == 64
    assert StepShape.with_prompts(1, 0, 64).query_lens == (64,)


@pytest.mark.parametrize(("max_rows", "max_drafts"), [(64, 0), (256, 0), (32, 1), (8, 7)])
def test_a_prompt_never_runs_in_the_shape_of_a_decode_with_as_many_tokens(max_rows: int, max_drafts: int) -> None:
    shapes = StepShapes(max_rows, max_drafts, prompt_tokens=256)
    decode = StepShape.decode(max_rows, max_drafts)
    decodes = tuple(row(slot, 9, drafts=max_drafts) for slot in range(1, max_rows // 2))
    length = decode.tokens - len(decodes) * (max_drafts + 1)
    chosen = shapes.of_step((row(0, 0, length, length), *decodes))
    assert chosen is not None
    assert (chosen.tokens, chosen.max_query_len) == (decode.tokens, decode.tokens)
    assert len(set(shapes.all)) == len(shapes.all)


def test_a_large_model_is_not_bound_by_launches() -> None:
    tiny = llama(hidden_size=64)
    large = llama(hidden_size=4096, intermediate_size=14336, num_heads=32, num_kv_heads=8, head_dim=128)
    assert 1000 < launch_bound_tokens(large) < 2000
    assert launch_bound_tokens(tiny) > 8192


class Room:
    """A recorder with memory for a few graphs, which do nothing. The first is a forward pass, then comes sampling."""

    def __init__(self, graphs: int) -> None:
        forward = ForwardResult(torch.zeros(4, 9), torch.arange(4), torch.arange(4))
        self.results = [(forward, torch.arange(5)), torch.arange(4)][:graphs]

    def record(self, work: object) -> tuple[HostGraph, object]:
        if not self.results:
            raise torch.OutOfMemoryError
        return HostGraph(lambda: None), self.results.pop(0)


class RoomForInputs:
    """An `InputGraph` of such a recorder."""

    def __init__(self, words: int, device: torch.device) -> None:
        self.tensor = torch.zeros(words, dtype=torch.int64)

    def record(self, recorder: Room, work: object) -> object:
        return recorder.record(work)[1]

    def launch(self, fill: Callable[[np.ndarray], object]) -> None:
        fill(self.tensor.numpy())


class Operations:
    """An eager executor that notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.sampled: ForwardResult | None = None

    def catch_up(self, chunks: object) -> None:
        self.calls.append("catch_up")

    def draft(self, rows: object) -> None:
        self.calls.append("draft")

    def forward(self, rows: object) -> ForwardResult:
        self.calls.append("forward")
        return ForwardResult(torch.zeros(3, 9), torch.arange(3), torch.arange(3))

    def sample(self, rows: object, result: ForwardResult, features: object) -> str:
        self.calls.append("sample")
        self.sampled = result
        return "sampled"


@pytest.mark.parametrize(
    ("graphs_with_room", "by_operation"),
    [(0, ["forward", "sample"]), (1, ["sample"]), (2, [])],
    ids=["none", "the forward pass", "both"],
)
def test_operations_do_what_no_memory_is_left_to_capture(
    graphs_with_room: int, by_operation: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "InputGraph", RoomForInputs)
    monkeypatch.setattr(graphs, "unowned", lambda tensor: tensor)
    eager, recorder = Operations(), Room(graphs_with_room)
    table = SimpleNamespace(tokens=torch.zeros(4, 9))
    results = SimpleNamespace(take=lambda samples, rows: ("tokens", "accepted", "moments"))
    made: Any = (StepShape.decode(4, 0), SimpleNamespace(table=table), recorder, recorder, results, eager)
    executor = GraphExecutor(*made)
    rows = tuple(row(slot, 5) for slot in range(3))
    for _ in range(2):
        result = executor.forward(rows)
        assert len(result.logits) == 3
        sampled = executor.sample(rows, result, SamplingFeatures.NONE)
        assert len(sampled) == len("sampled" if by_operation else ("tokens", "tokens", "accepted", "moments"))
        if eager.sampled is not None:
            assert [len(each) for each in eager.sampled] == [3, 3, 3], "there is no padding"
    assert eager.calls == 2 * by_operation
    if not graphs_with_room:
        executor.draft(rows)
        executor.catch_up(())
        assert eager.calls[-2:] == ["draft", "catch_up"]


def test_a_step_without_memory_for_its_graph_is_launched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "WritingInputGraph", lambda words, *_: RoomForInputs(words, torch.device("cpu")))
    table = SimpleNamespace(tokens=torch.zeros(4, 9), words=None)
    made: Any = (StepShape.decode(4, 3), SimpleNamespace(table=table), Room(0), Room(0), None, Operations())
    executor = GraphExecutor(*made)
    for _ in range(2):
        assert executor.whole_step(SamplingFeatures.TEMPERATURE) is None
    assert executor.step_graph.tried


@pytest.fixture
def uncaptured(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The parts of `StepGraphs` without a drafter, as far as these need any before a capture."""
    monkeypatch.setattr(step_graphs, "result_stages", lambda parts: None)
    monkeypatch.setattr(step_graphs, "EagerExecutor", lambda parts: None)
    return SimpleNamespace(shapes=StepShapes(8, 0, prompt_tokens=128), drafter=NoDrafter())


def test_ranks_capture_steps_in_parts_and_one_device_whole_ones(uncaptured: Any) -> None:
    recorder: Any = HostRecorder()
    for steps, expected in ((whole_steps, {"steps"}), (steps_in_parts, {"the", "sampling"})):
        graphs = StepGraphs(uncaptured, recorder, steps)
        for captured in (graphs.common(), graphs.largest()):
            assert {late._what.split()[0] for late in captured} == expected


def test_a_rehearsal_has_all_kinds_of_steps(uncaptured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind takes its inputs by a kernel of its own, also where nothing drafts."""
    rehearsed: list[Any] = []
    monkeypatch.setattr(Late, "require", lambda late: rehearsed.append(late))
    warmup.launch_graphs(uncaptured, HostRecorder())  # type: ignore[arg-type]
    texts = [late._what for late in rehearsed]
    for kind in ("steps of .*NONE", "steps of .*MASK", "the forward pass", "sampling with .*NONE"):
        assert any(re.match(kind, text) for text in texts), kind


def test_the_largest_shapes_have_the_most_samples_or_tokens() -> None:
    shapes = StepShapes(64, 4, prompt_tokens=1000, max_len=8192)
    largest = largest_shapes(shapes.all)
    for uneven in (False, True):
        alike = [shape for shape in shapes.all if shape.uneven == uneven]
        chosen = [shape for shape in largest if shape.uneven == uneven]
        assert max(shape.tokens for shape in chosen) == max(shape.tokens for shape in alike)
        assert max(shape.samples for shape in chosen) == max(shape.samples for shape in alike)
    assert largest_shapes([]) == []
