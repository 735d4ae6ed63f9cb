"""The whole engine on a GPU: the same structure as on a CPU, with the GPU's own operations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from equality import SAMPLING_KINDS

from draftline import LLM, SamplingParams
from draftline.engine.request.sequence import Row
from draftline.engine.runner.shapes import StepShape, StepShapes
from draftline.kernels.ops import AreUneven

PROMPTS = [[7, 300 + i, 11, *range(20, 20 + 3 * i)] for i in range(24)]

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}


# Graphs are captured for every engine that has them, which takes seconds.
DRAFTS = [
    pytest.param(4, False, id="4-graphs"),
    pytest.param(1, True, id="1-operations"),
    pytest.param(1, False, id="1-graphs", marks=pytest.mark.slow),
    pytest.param(4, True, id="4-operations", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's shape, with a tokenizer that only counts."""
    from draftline.engine.bench.contenders.placeholder_tokenizer import write_placeholder_tokenizer

    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(SHAPE))
    write_placeholder_tokenizer(path, SHAPE["vocab_size"])
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    """An engine in float32, where two orders of adding rarely decide a token."""
    return LLM(
        str(folder), load_format="dummy", device="cuda", dtype="float32", kv_cache_memory_gib=0.25, max_num_seqs=32
    )


@pytest.mark.xdist_group("engine-plain")
def test_the_engine_runs_on_the_gpu(llm: LLM) -> None:
    assert llm.info.device.startswith("cuda")


@pytest.mark.xdist_group("engine-plain")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_batched_equals_solo(llm: LLM, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=5, max_tokens=24, ignore_eos=True)
    together = llm.generate(PROMPTS, sampling, use_tqdm=False)
    for prompt, output in zip(PROMPTS, together, strict=True):
        (solo,) = llm.generate(prompt, sampling, use_tqdm=False)
        assert output.outputs[0].token_ids == solo.outputs[0].token_ids


@pytest.mark.xdist_group("engine-uneven")
@pytest.mark.parametrize("drafter", ["none", "ngram", "draft_model"])
def test_a_long_history_among_short_ones(tmp_path: Path, drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps whose histories are uneven have graphs of their own, and the same outputs."""
    from draftline.engine.bench.contenders.placeholder_tokenizer import write_placeholder_tokenizer

    (tmp_path / "config.json").write_text(json.dumps(SHAPE | {"num_key_value_heads": 8, "head_dim": 128}))
    write_placeholder_tokenizer(tmp_path, SHAPE["vocab_size"])
    target_itself = str(tmp_path) if drafter == "draft_model" else None
    drafts: dict[str, Any] = {} if drafter == "none" else {"draft_tokens": 3, "draft_length": "fixed"}
    engine = LLM(
        str(tmp_path), load_format="dummy", device="cuda", kv_cache_memory_gib=0.5, max_num_seqs=24, drafter=drafter,
        draft_model=target_itself, **drafts,
    )  # fmt: skip
    found: list[StepShape] = []
    drafted: list[StepShape] = []
    of_step, of_drafts = StepShapes.of_step, StepShapes.of_drafts

    def noted(shapes: StepShapes, rows: tuple[Row, ...], are_uneven: AreUneven) -> StepShape | None:
        shape = of_step(shapes, rows, are_uneven)
        found.extend([shape] if shape is not None and shape.uneven else [])
        return shape

    def noted_drafts(shapes: StepShapes, rows: tuple[Row, ...], are_uneven: AreUneven) -> StepShape | None:
        shape = of_drafts(shapes, rows, are_uneven)
        drafted.extend([shape] if shape is not None and shape.uneven else [])
        return shape

    monkeypatch.setattr(StepShapes, "of_step", noted)
    monkeypatch.setattr(StepShapes, "of_drafts", noted_drafts)
    # More than run at once: prompts join while the long history decodes.
    prompts = [[1 + token % 1000 for token in range(1900)], *PROMPTS, *[[9, *prompt] for prompt in PROMPTS]]
    samplings = [SamplingParams(temperature=0.0, max_tokens=60 - n, ignore_eos=True) for n in range(len(prompts))]
    together = engine.generate(prompts, samplings, use_tqdm=False)
    decodes = [shape for shape in found if shape.max_query_len == shape.drafts + 1]
    assert len(decodes) > 5
    assert len(found) - len(decodes) > 2
    # Whole steps draft themselves, others have drafts before.
    assert (len([shape for shape in decodes if shape.drafts]) > 5) == (drafter != "none")
    assert (len(drafted) > 2) == (drafter != "none")
    if target_itself is not None:
        stats = engine.stats().drafter
        assert stats.accepted > 0.95 * stats.drafted > 0
    found.clear()
    for prompt, sampling, output in zip(prompts, samplings, together, strict=True):
        (solo,) = engine.generate(prompt, sampling, use_tqdm=False)
        assert output.outputs[0].token_ids == solo.outputs[0].token_ids
    assert not found


@pytest.mark.xdist_group("engine-plain")
def test_graphs_equal_operations(llm: LLM, folder: Path) -> None:
    """Greedy and drawn, with every feature that a sampling graph may have, and rows that come and go."""
    eager = LLM(
        str(folder), load_format="dummy", device="cuda", dtype="float32", kv_cache_memory_gib=0.25, max_num_seqs=32,
        enforce_eager=True,
    )  # fmt: skip
    samplings = [
        SamplingParams(**SAMPLING_KINDS[i % len(SAMPLING_KINDS)], seed=i, max_tokens=3 + 5 * i % 41)
        for i in range(len(PROMPTS))
    ]
    for chosen in (slice(None), slice(0, 1), slice(1, 6)):
        by_graph, by_operation = (
            engine.generate(PROMPTS[chosen], samplings[chosen], use_tqdm=False) for engine in (llm, eager)
        )
        for a, b in zip(by_graph, by_operation, strict=True):
            assert a.outputs[0].token_ids == b.outputs[0].token_ids
            assert a.outputs[0].finish_reason == b.outputs[0].finish_reason
            assert len(a.outputs[0].logprobs or []) == len(b.outputs[0].logprobs or [])


@pytest.mark.xdist_group("engine-drafts")
@pytest.mark.parametrize(
    "drafts",
    [
        pytest.param({"drafter": "none"}, marks=pytest.mark.slow),
        {"drafter": "ngram", "draft_tokens": 3, "draft_length": "fixed"},
    ],
    ids=["none", "ngram"],
)
def test_prompts_in_chunks_beside_decodes(llm: LLM, folder: Path, drafts: dict[str, Any]) -> None:
    """Steps with prompts are graphs, too: of one row and of many, with drafts beside the chunks."""
    chunked = LLM(
        str(folder), load_format="dummy", device="cuda", dtype="float32", kv_cache_memory_gib=0.25, max_num_seqs=32,
        max_batched_tokens=48, **drafts,
    )  # fmt: skip
    prompts = [prompt + [40 + i] * (i % 5) * 17 for i, prompt in enumerate(PROMPTS)]
    samplings = [SamplingParams(temperature=i % 2 * 0.8, seed=i, max_tokens=9 + i % 20) for i in range(len(prompts))]
    whole, parts = (engine.generate(prompts, samplings, use_tqdm=False) for engine in (llm, chunked))
    same = sum(a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(whole, parts, strict=True))
    assert same >= len(prompts) - 1, f"{same} of {len(prompts)} equal; one near tie is forgiven"


@pytest.mark.xdist_group("engine-drafts")
def test_preemption_changes_nothing_with_steps_under_way(llm: LLM, folder: Path) -> None:
    tight = LLM(
        str(folder), load_format="dummy", device="cuda", dtype="float32", max_num_seqs=32, max_model_len=160,
        kv_cache_memory_gib=0.0025,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0.9, seed=3, max_tokens=60, ignore_eos=True)
    roomy, cramped = (engine.generate(PROMPTS, sampling, use_tqdm=False) for engine in (llm, tight))
    assert tight.stats().preemptions > 0
    for a, b in zip(roomy, cramped, strict=True):
        assert a.outputs[0].token_ids == b.outputs[0].token_ids


@pytest.mark.xdist_group("engine-drafts")
@pytest.mark.parametrize(("draft_tokens", "enforce_eager"), DRAFTS)
def test_drafts_change_nothing(llm: LLM, folder: Path, draft_tokens: int, enforce_eager: bool) -> None:
    """With sampled tokens and penalties, whose history changes inside a verify."""
    drafting = LLM(
        str(folder), load_format="dummy", device="cuda", dtype="float32", kv_cache_memory_gib=0.25, max_num_seqs=32,
        drafter="ngram", draft_tokens=draft_tokens, draft_length="fixed", enforce_eager=enforce_eager,
    )  # fmt: skip
    kinds = [
        {"temperature": 0.0},
        {"temperature": 0.3},
        {"temperature": 0.7, "top_p": 0.9, "min_tokens": 9},
        {"temperature": 0.0, "presence_penalty": 0.5, "frequency_penalty": 0.3, "logprobs": 2},
    ]
    samplings = [
        SamplingParams(**kinds[i % len(kinds)], seed=i, max_tokens=5 + 7 * i % 61, logit_bias={5: 4.0, 6: 4.0, 7: 4.0})  # type: ignore[arg-type]
        for i in range(len(PROMPTS))
    ]
    plain, drafted = (engine.generate(PROMPTS, samplings, use_tqdm=False) for engine in (llm, drafting))
    stats = drafting.stats()
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    same = sum(a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(plain, drafted, strict=True))
    assert same >= len(PROMPTS) - 1, f"{same} of {len(PROMPTS)} equal; one near tie is forgiven"


@pytest.mark.xdist_group("engine-plain")
def test_gpu_equals_cpu(llm: LLM, folder: Path) -> None:
    cpu = LLM(str(folder), load_format="dummy", device="cpu", dtype="float32", kv_cache_memory_gib=0.25)
    sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    on_gpu, on_cpu = (engine.generate(PROMPTS, sampling, use_tqdm=False) for engine in (llm, cpu))
    same = sum(a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(on_gpu, on_cpu, strict=True))
    assert same >= len(PROMPTS) - 1, f"{same} of {len(PROMPTS)} equal; one near tie is forgiven"


@pytest.mark.xdist_group("engine-plain")
def test_every_sampling_option_runs(llm: LLM) -> None:
    sampling = SamplingParams(
        temperature=0.9, top_p=0.9, top_k=40, min_p=0.01, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.1, logit_bias={3: 2.0}, min_tokens=4, max_tokens=8, logprobs=2, prompt_logprobs=1, n=2, seed=1,
    )  # fmt: skip
    for output in llm.generate(PROMPTS[:4], sampling, use_tqdm=False):
        assert [len(o.token_ids) for o in output.outputs] == [len(o.logprobs or []) for o in output.outputs]
        assert output.prompt_logprobs is not None


@pytest.mark.xdist_group("engine-draft-model")
@pytest.mark.parametrize(("draft_tokens", "enforce_eager"), DRAFTS)
def test_a_draft_model_changes_nothing(llm: LLM, folder: Path, draft_tokens: int, enforce_eager: bool) -> None:
    """The target itself drafts, so nearly all is accepted; then others join that may not draft."""
    drafting = LLM(
        str(folder), load_format="dummy", device="cuda", dtype="float32", kv_cache_memory_gib=0.5, max_num_seqs=32,
        draft_model=str(folder), draft_tokens=draft_tokens, draft_length="fixed", enforce_eager=enforce_eager,
    )  # fmt: skip
    samplings = [
        SamplingParams(temperature=0.4 * (i % 3), seed=i, max_tokens=5 + 7 * i % 61) for i in range(len(PROMPTS))
    ]
    plain = llm.generate(PROMPTS, samplings, use_tqdm=False)
    for chosen in (slice(None), slice(0, 1), slice(1, 6)):
        outputs = drafting.generate(PROMPTS[chosen], samplings[chosen], use_tqdm=False)
        for a, b in zip(plain[chosen], outputs, strict=True):
            assert a.outputs[0].token_ids == b.outputs[0].token_ids
    stats = drafting.stats().drafter
    assert stats.accepted > 0.95 * stats.drafted > 0
    assert stats.times.draft_s > 0
    assert stats.times.verify_s > 0


@pytest.mark.xdist_group("engine-draft-model")
@pytest.mark.parametrize("quantization", ["fp8", pytest.param("int8", marks=pytest.mark.slow)])
def test_a_quantized_draft_model_changes_nothing(llm: LLM, folder: Path, quantization: str) -> None:
    drafting = LLM(
        str(folder), load_format="dummy", device="cuda", dtype="float32", kv_cache_memory_gib=0.5, max_num_seqs=32,
        draft_model=str(folder), draft_quantization=quantization, draft_length="fixed",
    )  # fmt: skip
    sampling = SamplingParams(temperature=0.7, seed=3, max_tokens=40)
    plain = llm.generate(PROMPTS, sampling, use_tqdm=False)
    for a, b in zip(plain, drafting.generate(PROMPTS, sampling, use_tqdm=False), strict=True):
        assert a.outputs[0].token_ids == b.outputs[0].token_ids
    stats = drafting.stats().drafter
    assert 0 < stats.accepted < stats.drafted


@pytest.mark.xdist_group("engine-draft-model")
def test_a_draft_model_adapts_to_drafts_that_are_always_wrong(llm: LLM, folder: Path) -> None:
    drafting = LLM(
        str(folder), load_format="dummy", device="cuda", dtype="float32", kv_cache_memory_gib=0.5, max_num_seqs=32,
        draft_model=str(folder), synthetic_acceptance=0.0,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    drafting.generate(PROMPTS, sampling, use_tqdm=False)
    stats = drafting.stats()
    assert stats.accepted_tokens == 0
    assert stats.drafted_tokens < 0.2 * stats.generated_tokens
