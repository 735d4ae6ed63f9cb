"""Generated mixes on a GPU: batches, chunks, prefix hits, preemption, drafts, graphs and cancels change no bit of an answer.

The solo runs launch operation by operation. So where the mixed engine has CUDA graphs, these are compared as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from exact_mixes import Alone, Case, Wanted, check_crowd, check_mix, mixes, start
from exact_models import write_model
from hypothesis import HealthCheck, given, settings

from draftline.engine.core import Core

pytestmark = pytest.mark.long

DEVICE = "cuda"

CASES = (
    Case("llama-64", "float32", drafter="alternating"),
    Case("llama-576", "bfloat16", drafter="draft_model", quantization="fp8", kv_cache_dtype="fp8"),
    Case("llama-1024", "bfloat16", drafter="wrong", quantization="int8", kv_cache_dtype="int8"),
    Case("qwen3-256", "bfloat16", drafter="none", kv_cache_dtype="int8", max_batched_tokens=17),
    Case("qwen2-128", "bfloat16", drafter="forced"),
    Case("llama-576", "bfloat16", drafter="eagle3"),
    Case("gemma3-128", "bfloat16", drafter="ngram", enforce_eager=True),
    Case("gpt2-192", "float16", drafter="wrong", enforce_eager=True),
)

MORE_CASES = (
    Case("llama-576", "bfloat16", drafter="wrong"),
    Case("llama-576", "float16", drafter="ngram", enforce_eager=True),
    Case("llama-1024", "bfloat16", drafter="alternating", max_batched_tokens=300),
    Case("llama-1024", "float32", drafter="ngram", max_batched_tokens=33, enforce_eager=True),
    Case("qwen3-256", "float16", drafter="draft_model", quantization="fp8", max_batched_tokens=130),
    Case("qwen3-256", "bfloat16", drafter="alternating", kv_cache_dtype="fp8", enforce_eager=True),
    Case("qwen2-128", "float32", drafter="wrong", quantization="int8", enforce_eager=True),
    Case("qwen3-256", "float16", drafter="eagle3", quantization="fp8", kv_cache_dtype="fp8"),
    Case("mistral-256", "bfloat16", drafter="draft_model"),
    Case("mistral-256", "bfloat16", drafter="none", kv_cache_dtype="int8", max_batched_tokens=17),
    Case("mistral-256", "float16", drafter="alternating", kv_cache_dtype="int8", enforce_eager=True),
    Case("gemma3-128", "bfloat16", drafter="ngram"),
    Case("gemma3-128", "bfloat16", drafter="eagle3", enforce_eager=True),
    Case("gemma3-128", "float32", drafter="alternating", kv_cache_dtype="fp8", enforce_eager=True),
    Case("gpt2-192", "float16", drafter="wrong"),
)
"""Run with ``-m slow``: each type, drafter and cache, and nearly each shape, is in one of the others."""

Engines = tuple[Case, Core, Alone]


def _name(case: Case) -> str:
    launches = "operations" if case.enforce_eager else "graphs"
    eight_bit = [f"{case.quantization}-weights"] * (case.quantization != "auto")
    eight_bit += [f"{case.kv_cache_dtype}-cache"] * (case.kv_cache_dtype != "auto")
    return "-".join([case.shape, case.dtype, *eight_bit, case.drafter, launches])


PARAMETERS = [
    pytest.param(case, id=_name(case), marks=[pytest.mark.xdist_group(f"exactness-{_name(case)}"), *marks])
    for cases, marks in ((CASES, []), (MORE_CASES, [pytest.mark.slow]))
    for case in cases
]


@pytest.fixture(scope="module", params=PARAMETERS)
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    case: Case = request.param
    eight_bit_floats = "fp8" in (case.quantization, case.kv_cache_dtype)
    if eight_bit_floats and DEVICE == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("FP8 needs compute capability 8.9")
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, case.shape)
    core, alone = start(folder, case, DEVICE), Alone(folder, case, DEVICE)
    yield case, core, alone
    for each in (core, alone.core):
        each.compiler.close()


def test_a_crowd_equals_solo_runs(engines: Engines) -> None:
    case, core, alone = engines
    check_crowd(core, alone, case)


@given(mix=mixes())
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_generated_mixes_equal_solo_runs(engines: Engines, mix: list[Wanted]) -> None:
    _, core, alone = engines
    check_mix(core, alone, mix)
