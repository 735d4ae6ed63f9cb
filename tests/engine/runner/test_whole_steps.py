"""Steps in graphs of a whole step, and in graphs of its parts, have the results of launches by operation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from drafters import oracle
from equality import assert_same
from host_graphs import HostInputGraph, HostResultStages, HostWritingInputGraph, ResultRecorder
from tiny import CONFIG, Client, tiny_core
from torch import Tensor
from typing_extensions import override

from draftline.engine.core import Core
from draftline.engine.outputs import RequestOutput
from draftline.engine.parallel.leader import Ranks
from draftline.engine.params import Constraint, SamplingParams
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.engine.runner.capture import Late
from draftline.engine.runner.executor import ExecutorParts, Executors
from draftline.engine.runner.graphs import executor as graphs
from draftline.engine.runner.graphs.executor import GraphExecutor
from draftline.engine.runner.ranks import OtherRanks
from draftline.engine.runner.shapes import StepShapes
from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.ops import TritonOps
from draftline.models.hidden_states import NO_HIDDEN_STATES, HiddenStateSink
from draftline.models.model import Model
from draftline.spec.drafter import DraftChunk, Drafter, DraftRows, WrappedDrafter
from draftline.spec.no_drafter import NoDrafter

SAMPLINGS = {
    "greedy": SamplingParams(temperature=0, max_tokens=24),
    "by chance": SamplingParams(temperature=0.9, seed=5, max_tokens=24),
    "few tokens": SamplingParams(temperature=0.9, seed=6, top_p=0.8, top_k=9, max_tokens=24),
    "penalties": SamplingParams(temperature=0.9, seed=7, repetition_penalty=1.3, max_tokens=15),
    "log-probabilities": SamplingParams(temperature=0, logprobs=2, max_tokens=24),
}
AUTOMATON = Constraint(regex="(abc){2,5}[x-z]{12,20}")
ON_HOST = Constraint(grammar='start: "(" start ")" | /[ab]{9,20}/')
WANTED: list[tuple[SamplingParams, Constraint | None]] = [
    *((sampling, None) for sampling in SAMPLINGS.values()),
    (SAMPLINGS["penalties"], AUTOMATON),
    (SAMPLINGS["few tokens"], AUTOMATON),
    (SAMPLINGS["greedy"], None),
    (SamplingParams(temperature=0.9, seed=8, max_tokens=12), ON_HOST),
]
REQUESTS = [
    ([7 + i, 3, *range(20, 30 + 5 * i)], sampling, constraint) for i, (sampling, constraint) in enumerate(WANTED)
]


KINDS = ("steps", "the forward pass", "sampling", "drafts", "catching up")
"""Of graphs, as logs name them."""


class TwoTokens(Model):
    """A model whose logits depend on a token, its position, and the token before, which it finds in the cache."""

    config, dtype, cache_dtype, device = CONFIG, torch.float32, torch.float32, torch.device("cpu")
    quantization, nbytes, brief_layers = "F32", 0, 1

    def __init__(self) -> None:
        self._logits = 3 * torch.randn(331, CONFIG.vocab_size, generator=torch.Generator().manual_seed(0))

    @override
    def forward(self, batch: Batch, cache: KVCache, sink: HiddenStateSink = NO_HIDDEN_STATES) -> Tensor:
        stored, real = cache.layers[0].keys[..., 0, 0], batch.cache_index >= 0
        stored.view(-1)[batch.cache_index[real]] = batch.token_ids[real].float()
        deciding = batch.logits_index
        before = (batch.positions[deciding] - 1).clamp(min=0)
        rows = torch.searchsorted(batch.query_starts[1:].long(), deciding, right=True).clamp(
            max=len(batch.block_tables) - 1
        )
        blocks = batch.block_tables[rows, before // cache.block_size].clamp(0, len(stored) - 1)  # padding has any
        earlier = stored[blocks, before % cache.block_size].long()
        return self._logits[(7 * batch.token_ids[deciding] + before + 3 * earlier) % len(self._logits)]


class SeesBlocks(WrappedDrafter):
    """A drafter that checks that the rows' blocks are in the slot table when it drafts."""

    core: Core

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        running = {sequence.slot: sequence for sequence in self.core._scheduler.running}
        for slot, drafts in zip(rows.slots.tolist(), rows.drafts.tolist(), strict=True):
            if drafts:
                blocks = running[slot].blocks
                assert table.block_tables[slot, : len(blocks)].tolist() == blocks
        super().propose(rows, table)


def by_operation(drafter: Drafter | None = None) -> Core:
    return tiny_core(target=TwoTokens(), drafter=drafter, num_slots=4, token_budget=64, steps_ahead=1)


def results_of(core: Core) -> list[RequestOutput]:
    client = Client(core)
    for i, (prompt, sampling, constraint) in enumerate(REQUESTS):
        client.submit(str(i), prompt, sampling, constraint=constraint)
    results = client.run()
    return [results[str(i)] for i in range(len(REQUESTS))]


def in_graphs(core: Core, monkeypatch: pytest.MonkeyPatch, missing: str = "") -> Counter[str]:
    """Let the core's steps run in stand-ins of graphs; how often each kind of graph is used.

    There is no memory for the kinds that are ``missing``.
    """
    monkeypatch.setattr(graphs, "InputGraph", HostInputGraph)
    monkeypatch.setattr(graphs, "WritingInputGraph", HostWritingInputGraph)
    monkeypatch.setattr(graphs, "unowned", lambda tensor: tensor)
    used, find = Counter[str](), Late.find

    def counted(late: Late[Any]) -> Any:
        kind = next(kind for kind in KINDS if late._what.startswith(kind))
        used[kind] += 1
        used["masked steps"] += kind == "steps" and "MASK" in late._what
        return None if kind in missing.split(", ") else find(late)

    monkeypatch.setattr(Late, "find", counted)
    eager, ops = core._runner._executors.eager, TritonOps.sized(DeviceLimits.known(80, 8))
    shapes = StepShapes(4, core._runner._drafter.max_draft_tokens, prompt_tokens=64)
    parts: ExecutorParts = replace(eager._parts, ops=ops, sample=ops.sample, accept=ops.accept)  # type: ignore[attr-defined]
    recorder, results = ResultRecorder(parts.table.words, parts.constraints.states), HostResultStages()
    core._runner._executors = Executors(
        eager,
        shapes,
        {shape: GraphExecutor(shape, parts, recorder, recorder, results, eager) for shape in shapes.all},  # type: ignore[arg-type]
    )
    return used


@pytest.fixture(scope="module")
def expected() -> list[RequestOutput]:
    return results_of(by_operation())


def drafting_core(drafts: int, expected: list[RequestOutput]) -> Core:
    """A core whose drafter, unless it drafts nothing, knows most of the results."""
    texts = [[*request[0], *result.outputs[0].token_ids] for request, result in zip(REQUESTS, expected, strict=True)]
    drafter = SeesBlocks(oracle(drafts, texts, wrong_every=5) if drafts else NoDrafter())
    drafter.core = core = by_operation(drafter)
    return core


def test_parts_of_steps_by_operation_take_some_time() -> None:
    core = by_operation(oracle(3, []))
    client = Client(core)
    client.submit("0", *REQUESTS[0][:2])
    client.run()
    times = core.stats().drafter.times
    assert all(0 < seconds < 600 for seconds in (times.draft_s, times.verify_s, times.sample_s, times.host_s))


@pytest.mark.parametrize("drafts", [0, 3])
def test_steps_in_graphs_change_nothing(
    drafts: int, expected: list[RequestOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = drafting_core(drafts, expected)
    used = in_graphs(core, monkeypatch)
    for result, plain in zip(results_of(core), expected, strict=True):
        assert_same(result, plain)
    # Penalties and masks of the host are no part of whole steps, and beside prompts drafts are none.
    assert used["steps"] - used["masked steps"] > 1
    assert used["masked steps"] > 1
    assert used["sampling"] > 3
    assert (used["drafts"] > 3) == (drafts > 0)
    assert (core.stats().drafter.accepted > 20) == (drafts > 0)
    times = core.stats().drafter.times
    assert (times.host_s > 0) == (times.draft_s > 0) == (times.verify_s > 0) == (drafts > 0), "steps with drafts count"


@pytest.mark.parametrize(
    "missing",
    [
        "steps, the forward pass",
        "steps, sampling",
        *(pytest.param(kinds, marks=pytest.mark.slow) for kinds in ("steps", "drafts", "steps, drafts")),
    ],
)
def test_steps_without_some_of_their_graphs_change_nothing(
    missing: str, expected: list[RequestOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = drafting_core(3, expected)
    in_graphs(core, monkeypatch, missing)
    for result, plain in zip(results_of(core), expected, strict=True):
        assert_same(result, plain)
    assert core.stats().drafter.accepted > 20


class Exchange(OtherRanks):
    """Ranks that have to know the drafts and tokens of every step."""

    exchange = True


def test_ranks_exchange_between_the_parts_of_every_step(
    expected: list[RequestOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = drafting_core(3, expected)
    core._runner._ranks = Exchange()
    used = in_graphs(core, monkeypatch)
    client = Client(core)
    client.submit("0", *REQUESTS[0][:2])
    assert_same(client.run()["0"], expected[0])
    assert not used["steps"]
    assert used["the forward pass"] > 3
    assert Ranks.exchange


def row_of(slot: int, start: int, known: int, drafts: int = 0) -> Row:
    sequence = Sequence("r", 0, [1] * known, known, SAMPLINGS["greedy"], seed=0, max_len=known + 9, order=0.0)
    return Row(sequence, slot, start, known - start, known, drafts, 1 + drafts)


@pytest.mark.parametrize("reader", ["catch_up", "draft"])
def test_blocks_are_written_before_a_drafter_reads_them(reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What catches up, and drafts beside a prompt, is launched before the step's graph."""
    core = by_operation(oracle(3, []))
    in_graphs(core, monkeypatch)
    seen: list[int] = []
    table = core._runner._table
    monkeypatch.setattr(GraphExecutor, reader, lambda self, chunks: seen.append(int(table.block_tables[0, 0])))
    rows, chunks = (row_of(0, 4, 5),), [DraftChunk(0, 0, 4)]
    if reader == "draft":
        rows, chunks = (row_of(0, 4, 5, drafts=2), row_of(1, 0, 9)), []
    step = core._runner.launch(Plan(rows=rows, admitted=rows, new_blocks=((0, 0, 17), (1, 0, 18))), chunks)
    assert seen == [17]
    assert step.logits == sum(row.samples for row in rows), "there is no padding"
