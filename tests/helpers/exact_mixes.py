"""Generated mixes of requests in one engine, against each request alone in another: tokens and log-probabilities bit for bit.

The mixed engine has everything that may change how a row is computed: other rows, chunks, prefix hits, preemption by a
cache that is too small, drafts by an adversary, and where it has them, CUDA graphs and steps ahead. The other engine has
none of it. It computes each prompt in one piece, launches operation by operation, and never drafts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters import SomeSteps
from exact_models import MAX_MODEL_LEN, SHAPES
from hypothesis import strategies as st
from tiny import Client, ticking
from tiny_head import head_fields, random_weights, write_head
from typing_extensions import override

from draftline import Constraint, EngineConfig, RequestOutput, SamplingParams, Speculation
from draftline.engine import build, loading
from draftline.engine.core import Core
from draftline.engine.drafting.build import DrafterBuilder
from draftline.engine.drafting.policy import DraftPolicy
from draftline.engine.outputs import CompletionOutput
from draftline.engine.parallel import sizes
from draftline.engine.stats import EngineStats
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.slots import SlotTable
from draftline.models.families import config_from_hf
from draftline.models.heads.config import head_config
from draftline.spec.drafter import Drafter, DraftRows, GatherChunks

BLOCK_SIZE = 16
SCARCE_BLOCKS = 72
"""Of the mixed engine: room for one sequence of any length and a half, or for eight short ones."""
PLENTY_OF_BLOCKS = 128
"""Of the other engine: room for two sequences of any length."""
DRAFTS = 3


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration of both engines.

    Attributes:
        shape: a key of `exact_models.SHAPES`.
        dtype: of activations.
        drafter: a key of `ADVERSARIES`, `HEAD`, or a drafter of the mixed engine by its own name.
        quantization: of the weights.
        kv_cache_dtype: of keys and values.
        enforce_eager: whether the mixed engine has no CUDA graphs either.
        max_batched_tokens: of the mixed engine: the longest chunk of a prompt.
        ranks: of both engines: their number is part of the arithmetic.
        draft_ranks: those that share the mixed engine's draft model.
    """

    shape: str
    dtype: str
    drafter: str = "none"
    quantization: str = "auto"
    kv_cache_dtype: str = "auto"
    enforce_eager: bool = False
    max_batched_tokens: int = 80
    ranks: int = 1
    draft_ranks: int = 1


class Wrong(Drafter):
    """Drafts a hash of the position and the newest token, on the device: hardly ever right."""

    name = "wrong"

    def __init__(self, inner: Drafter) -> None:
        self.max_draft_tokens = inner.max_draft_tokens

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        lengths = table.lengths[rows.slots].long()
        newest = table.tokens[rows.slots, (lengths - 1).clamp(min=0)].long()
        for ahead in range(rows.max_drafts):
            guess = (newest * 131 + (lengths + ahead) * 7919 + 13) % 256
            table.tokens[rows.slots, lengths + ahead] = guess.int()


class Alternating(Drafter):
    """Another drafter's tokens, of which every second is replaced by a wrong one."""

    def __init__(self, inner: Drafter) -> None:
        self.name, self.max_draft_tokens = inner.name, inner.max_draft_tokens
        self.keeps_cache = inner.keeps_cache
        self._inner = inner

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        self._inner.propose(rows, table)
        lengths = table.lengths[rows.slots].long()
        for ahead in range(rows.max_drafts):
            positions = lengths + ahead
            # All rows of a slot (padding has slot 0) write the same.
            drafts = table.tokens[rows.slots, positions]
            table.tokens[rows.slots, positions] = torch.where(positions % 2 == 0, (drafts + 1) % 256, drafts)

    @override
    def catch_up(self, gather: GatherChunks) -> None:
        self._inner.catch_up(gather)


ADVERSARIES: dict[str, tuple[str, type[Wrong | Alternating]]] = {
    "wrong": ("ngram", Wrong),
    "alternating": ("draft_model", Alternating),
}
"""By name: the drafter whose place they take, or whose drafts they spoil."""

HEAD = "eagle3"
"""The drafter of a case with a head."""


def _draft_of(folder: Path, case: Case) -> Path | None:
    """What the case's ``draft_model`` names: the target itself, or a head with random weights."""
    if case.drafter != HEAD:
        return folder if ADVERSARIES.get(case.drafter, (case.drafter, None))[0] == "draft_model" else None
    target = config_from_hf(SHAPES[case.shape])
    fields = head_fields(
        target, hidden_size=64, intermediate_size=96, head_dim=32, eagle_aux_hidden_state_layer_ids=[0, 1, 2]
    )
    return write_head(folder / "head", fields, random_weights(head_config(fields, "head", target)))


def start(folder: Path, case: Case, device: str) -> Core:
    """The mixed engine of a case."""
    drafter, adversary = ADVERSARIES.get(case.drafter, (case.drafter, None))
    draft_model = _draft_of(folder, case)

    class Builder(DrafterBuilder):
        """Drafts in some steps only, each sequence as many tokens as chance has it."""

        @override
        def build(self, blocks: int, constraints: ConstraintTable) -> Drafter:
            inner = super().build(blocks, constraints)
            return inner if adversary is None else adversary(inner)

        @override
        def _lengths(self, *measured: Any) -> DraftPolicy:
            return SomeSteps(super()._lengths(*measured), seed=5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "DrafterBuilder", Builder)
        patch.setattr(sizes, "cache_blocks", lambda *_, **__: SCARCE_BLOCKS)
        core = build.build_core(
            _config(
                folder,
                case,
                device,
                enforce_eager=case.enforce_eager,
                max_batched_tokens=case.max_batched_tokens,
                drafter="draft_model" if draft_model else drafter,
                draft_model=None if draft_model is None else str(draft_model),
                draft_tensor_parallel_size=case.draft_ranks,
                **({} if drafter == "none" else {"draft_tokens": DRAFTS}),
                **({} if drafter in ("none", "forced") else {"draft_length": "fixed"}),
            )
        )
    # The length of steps is measured, and a busy machine would have smaller ones, which preempt nothing.
    core.now = ticking()
    return core


def _config(folder: Path, case: Case, device: str, **options: object) -> EngineConfig:
    common = {
        "model": str(folder),
        "device": device,
        "tensor_parallel_size": case.ranks,
        "dtype": case.dtype,
        "quantization": case.quantization,
        "kv_cache_dtype": case.kv_cache_dtype,
        "kv_cache_memory_gib": 0.05,
        "max_model_len": MAX_MODEL_LEN,
        "block_size": BLOCK_SIZE,
        "max_num_seqs": 8,
    }
    return EngineConfig.model_validate(common | options)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request of a mix. It arrives before step ``arrives``, and is cancelled ``cancelled_after`` steps later, if at all."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    constraint: Constraint | None = None
    speculation: Speculation = field(default_factory=Speculation)
    priority: int = 0
    arrives: int = 0
    cancelled_after: int | None = None


_TEXTS = [tuple(random.Random(seed).choices(range(256), k=640)) for seed in range(2)]
"""Prompts begin like one of these."""

_SAMPLINGS: list[dict[str, object]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20, "min_p": 0.05},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 0.9, "repetition_penalty": 1.1, "logit_bias": {5: 3.0, 7: -100.0}, "min_tokens": 3},
    {"temperature": 1.0, "stop_token_ids": tuple(range(3, 256, 9))},
    {"temperature": 0.9, "n": 2},
]

_CONSTRAINTS = [None, None, None, Constraint(regex='\\{"name": "[a-z]{2,9}", "age": [0-9]{1,3}\\}')]


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, ...]:
    """Beginnings that are common, some past the borders of cache blocks and of the keys' parts, and an end of its own."""
    text = draw(st.sampled_from(_TEXTS))
    common = draw(st.sampled_from((0, 0, 3, 16, 33, 64, 100, 128, 255, 256, 300, 513, 600)))
    own = draw(st.lists(st.integers(0, 255), min_size=1, max_size=20))
    return (*text[:common], *own)


@st.composite
def samplings(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        **draw(st.sampled_from(_SAMPLINGS)),  # type: ignore[arg-type]
        seed=draw(st.integers(0, 2**64 - 1)),
        max_tokens=draw(st.integers(3, 24)),
        logprobs=draw(st.sampled_from((0, 0, 3, None))),
        prompt_logprobs=draw(st.sampled_from((None, None, None, 1))),
        ignore_eos=draw(st.booleans()),
    )


def mixes() -> st.SearchStrategy[list[Wanted]]:
    """From a single request to two for each slot."""
    one = st.builds(
        Wanted,
        prompt=prompts(),
        sampling=samplings(),
        constraint=st.sampled_from(_CONSTRAINTS),
        speculation=st.sampled_from(
            (Speculation(), Speculation(), Speculation(draft_tokens=1), Speculation(enabled=False))
        ),
        priority=st.sampled_from((0, 0, 3)),
        arrives=st.integers(0, 12),
        cancelled_after=st.sampled_from((None, None, None, 1, 6, 20)),
    )
    return st.lists(one, min_size=1, max_size=16)


_CANCELLED = 7
"""The number of the request that a crowd cancels."""


def crowd() -> list[Wanted]:
    """A mix that preempts, hits prefixes, drafts and cancels for certain."""
    draw = random.Random(3)
    ends = [tuple(draw.choices(range(256), k=draw.randint(1, 30))) for _ in range(12)]
    lengths = (0, 20, 600, 300, 0, 256, 130, 300, 0, 64, 513, 16)
    return [
        Wanted(
            prompt=(*_TEXTS[index % 2][:common], *end),
            sampling=SamplingParams(
                **_SAMPLINGS[index % len(_SAMPLINGS)],  # type: ignore[arg-type]
                seed=draw.randrange(2**64),
                max_tokens=150
                if index == _CANCELLED
                else 30,  # drafts may decide five tokens in each of the steps until then
                ignore_eos=index == _CANCELLED,
                logprobs=2 if index % 3 else 0,
                prompt_logprobs=1 if index == 4 else None,
            ),
            constraint=_CONSTRAINTS[-1] if index in (1, 9) else None,
            arrives=index // 3,
            cancelled_after=25 if index == _CANCELLED else None,
        )
        for index, (common, end) in enumerate(zip(lengths, ends, strict=True))
    ]


def run_mix(core: Core, mix: Sequence[Wanted]) -> list[RequestOutput]:
    """Run a mix to its end, request by request as they arrive and are cancelled. Invariants are checked at every step."""
    client = Client(core)
    waiting = dict(enumerate(mix))
    cancels = {i: wanted.arrives + wanted.cancelled_after for i, wanted in waiting.items() if wanted.cancelled_after}
    step = 0
    while waiting or core.has_work:
        for index in [index for index, wanted in waiting.items() if wanted.arrives <= step]:
            submit(client, str(index), waiting.pop(index))
        for index in [index for index, at in cancels.items() if at <= step]:
            core.cancel(str(index))
            del cancels[index]
        if core.has_work:
            core.step()
            core.check()
        step += 1
        assert step < 10_000, "the mix does not end"
    results = client.run()
    return [results[str(index)] for index in range(len(mix))]


def submit(client: Client, name: str, wanted: Wanted) -> None:
    client.submit(
        name, wanted.prompt, wanted.sampling, wanted.priority, wanted.speculation, constraint=wanted.constraint
    )


class Alone:
    """The engine of solo runs. Each request runs once, however many mixes it is in.

    Attributes:
        core: the engine.
    """

    def __init__(self, folder: Path, case: Case, device: str) -> None:
        config = _config(
            folder, case, device, enforce_eager=True, max_batched_tokens=2048, drafter="none", prefix_caching=False
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sizes, "cache_blocks", lambda *_, **__: PLENTY_OF_BLOCKS)  # thousands take long to check
            self.core = build.build_core(config)
        self._known: dict[str, RequestOutput] = {}

    def run(self, wanted: Wanted) -> RequestOutput:
        key = repr((wanted.prompt, wanted.sampling, wanted.constraint))
        if key not in self._known:
            client = Client(self.core)
            submit(client, "alone", wanted)
            self._known[key] = client.run()["alone"]
        return self._known[key]


def assert_exact(output: RequestOutput, alone: RequestOutput, *, cancelled: bool) -> None:
    """Everything but times and cache hits, floats to the last bit. A cancelled output is the beginning of the other."""
    for got, want in zip(output.outputs, alone.outputs, strict=True):
        if cancelled and got.finish_reason == "cancelled":
            assert_begins(got, want)
        else:
            assert got.token_ids == want.token_ids
            assert got.logprobs == want.logprobs
            assert (got.text, got.finish_reason, got.stop_reason) == (want.text, want.finish_reason, want.stop_reason)
    if output.prompt_logprobs or not cancelled:
        assert output.prompt_logprobs == alone.prompt_logprobs


def assert_begins(got: CompletionOutput, want: CompletionOutput) -> None:
    count = len(got.token_ids)
    assert got.token_ids == want.token_ids[:count]
    assert (got.logprobs or []) == (want.logprobs or [])[:count]


def assert_mix(outputs: Sequence[RequestOutput], alone: Sequence[RequestOutput], mix: Sequence[Wanted]) -> None:
    """Every output of the mix equals its solo run."""
    for output, solo, wanted in zip(outputs, alone, mix, strict=True):
        assert_exact(output, solo, cancelled=wanted.cancelled_after is not None)


def check_mix(core: Core, alone: Alone, mix: Sequence[Wanted]) -> list[RequestOutput]:
    """Run a mix. Every output equals its solo run."""
    outputs = run_mix(core, mix)
    assert_mix(outputs, [alone.run(wanted) for wanted in mix], mix)
    return outputs


def check_crowd(core: Core, alone: Alone, case: Case, times: int = 2) -> None:
    """The crowd's outputs equal their solo runs each time, and the engine did all that could have changed them."""
    for _ in range(times):
        assert_cancelled(check_mix(core, alone, crowd()))
    assert_adverse(core.stats(), case)


def assert_cancelled(outputs: Sequence[RequestOutput]) -> None:
    """Some output of the crowd was cancelled."""
    assert any(output.finish_reason == "cancelled" for one in outputs for output in one.outputs)


def assert_adverse(stats: EngineStats, case: Case) -> None:
    """The mixed engine did all that could have changed the crowd's outputs."""
    assert stats.preemptions > 0, "the cache was not scarce enough to preempt"
    assert stats.prefix_hit_tokens > 0
    if case.drafter == "none":
        assert not stats.drafted_tokens
        return
    assert stats.drafted_tokens > 0
    if case.drafter == "alternating":
        assert 0 < stats.accepted_tokens < stats.drafted_tokens
    if case.drafter == "wrong":
        assert stats.accepted_tokens < stats.drafted_tokens / 10
    if case.drafter == "draft_model":
        assert stats.accepted_tokens > stats.drafted_tokens / 4
