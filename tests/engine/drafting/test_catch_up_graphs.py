"""In steps that fit a graph, a drafter with a cache launches nothing by operation, and its graphs fill the same cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from drafters import gatherer
from equality import assert_same
from host_graphs import HostInputGraph, HostRecorder
from tiny import CONFIG, Client, alone, draft_model, free_constraints, tiny_core, tiny_model
from tiny_head import InMemory, eagle3, head_fields, random_weights, tiny_head

from draftline.engine.params import SamplingParams
from draftline.engine.runner.executor import ExecutorParts, Executors
from draftline.engine.runner.graphs import executor as graphs
from draftline.engine.runner.graphs import step_graphs
from draftline.engine.runner.shapes import StepShape, StepShapes
from draftline.engine.runner.timing import StepClock
from draftline.kernels import select_ops
from draftline.kernels.batch import KVCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.ops import TritonOps
from draftline.models.heads.checkpoint import HeadCheckpoint
from draftline.models.heads.config import head_config
from draftline.models.heads.eagle3 import Eagle3Head
from draftline.spec.drafter import DraftChunk, Drafter
from draftline.spec.no_drafter import NoDrafter

CPU = torch.device("cpu")


class Counting:
    """Another executor, and how often each of its parts is called."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.calls[name] += 1
            return getattr(self._executor, name)(*arguments)

        return counted


@pytest.mark.parametrize("kind", ["head", "draft model"])
def test_a_step_in_graphs_has_no_launch_by_operation(kind: str) -> None:
    """Prompts, catching up, drafts and verification of several requests, some of which arrive while others decode."""
    drafter: Drafter = eagle3(tiny_head(), 3) if kind == "head" else draft_model(3, noise=0.03)
    core = tiny_core(drafter=drafter, num_slots=4, token_budget=64, steps_ahead=1)
    shapes = StepShapes(4, 3, prompt_tokens=64)
    eager, captured = Counting(core._runner._executors.eager), Counting(core._runner._executors.eager)
    every = dict.fromkeys(shapes.all, captured)
    core._runner._executors = Executors(eager, shapes, every)  # type: ignore[arg-type]
    client = Client(core)
    requests = [([7 + i, 3, *range(20, 30 + i)], SamplingParams(temperature=0, max_tokens=8 + i)) for i in range(5)]
    for i, (prompt, sampling) in enumerate(requests):
        client.submit(str(i), prompt, sampling)
    results = client.run()
    for i, (prompt, sampling) in enumerate(requests):
        assert_same(results[str(i)], alone(prompt, sampling))
    assert not eager.calls
    assert captured.calls["catch_up"] >= 2
    assert captured.calls["draft"] > captured.calls["catch_up"]


def executor(monkeypatch: pytest.MonkeyPatch, drafter: Drafter, table: SlotTable, shape: StepShape) -> Any:
    """A graph executor that has only its catching up."""
    monkeypatch.setattr(graphs, "InputGraph", HostInputGraph)
    cache = KVCache.allocate(1, 1, 8, 1, 8, dtype=torch.float32, device=CPU)
    ops, constraints = select_ops(CPU), free_constraints(4)
    shapes, clock = StepShapes(4, 3, 64), StepClock.of(ops, CPU)
    parts = ExecutorParts(
        tiny_model(CONFIG), cache, table, ops, drafter, ops.sample, ops.accept, constraints, shapes, clock
    )
    recorder: Any = HostRecorder()
    return graphs.GraphExecutor(shape, parts, recorder, recorder, None, None)  # type: ignore[arg-type]


def kernel_head() -> Eagle3Head:
    """A head that computes with the GPU's kernels, interpreted."""
    config = head_config(head_fields(head_dim=16), "head", CONFIG)
    weights = random_weights(config)
    ids = torch.arange(config.draft_vocab_size) + weights["d2t"]
    ops = TritonOps.sized(DeviceLimits.known(80, 8))
    return Eagle3Head(HeadCheckpoint(config, InMemory(config.layer, weights), ids), ops, torch.float32, CPU)


@torch.inference_mode()
def test_a_graph_fills_the_cache_as_operations_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head's entries of two chunks and a padding row, gathered by the kernel for a plan on the device."""
    filled = []
    for by_graph in (False, True):
        drafter = eagle3(kernel_head(), 3)
        draw = torch.Generator().manual_seed(0)
        drafter._store._states.copy_(torch.randn(drafter._store._states.shape, generator=draw))
        drafter._store._states[-1] = 0
        table = SlotTable.allocate(4, 48, 6, CPU)
        table.tokens.copy_(torch.randint(0, 256, table.tokens.shape, generator=draw))
        table.block_tables.copy_(torch.randperm(24, generator=draw).view(4, 6))
        chunks = [DraftChunk(3, 0, 9), DraftChunk(1, 5, 5)]
        if by_graph:
            executor(monkeypatch, drafter, table, StepShape.with_prompts(3, 0, 16)).catch_up(chunks)
        else:
            drafter.catch_up(gatherer(chunks, table, ReferenceOps(), 8))
        layer = drafter._cache.layers[0]
        where = [
            int(table.block_tables[chunk.slot, position // 8]) * 8 + position % 8
            for chunk in chunks
            for position in range(chunk.start, chunk.start + chunk.count)
        ]
        filled.append(torch.stack((layer.keys.flatten(0, 1)[where], layer.values.flatten(0, 1)[where])))
    assert filled[0].abs().sum() > 0
    torch.testing.assert_close(filled[1], filled[0], atol=1e-5, rtol=1e-5)


def test_drafters_with_a_cache_have_graphs_to_catch_up_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_graphs, "result_stages", lambda parts: None)
    monkeypatch.setattr(step_graphs, "EagerExecutor", lambda parts: None)
    shapes = StepShapes(64, 3, prompt_tokens=128)
    for drafter, expected in ((NoDrafter(), []), (draft_model(3, noise=0.0), shapes.catch_ups)):
        parts: Any = SimpleNamespace(shapes=shapes, drafter=drafter)
        every = step_graphs.StepGraphs(parts, HostRecorder())  # type: ignore[arg-type]
        common = every.common()
        assert [each for each in shapes.all if every.executors[each].catch_up_graph in common] == expected
        for family in every.families():
            assert len(set(family)) == len(shapes.all)
            assert not set(family) & set(common)
    assert shapes.of_chunks([30, 30]) == StepShape.with_prompts(8, 0, 64)
    assert shapes.of_chunks([2] * 9) == StepShape.with_prompts(32, 0, 64)
    assert shapes.of_chunks([100, 29]) is None
    assert shapes.of_chunks([1] * 65) is None
    assert {shapes.of_chunks(counts) for counts in ([1], [64], [65], [128], [1] * 64)} <= set(shapes.catch_ups)
