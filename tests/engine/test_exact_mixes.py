"""Generated mixes on a CPU: batches, chunks, prefix hits, preemption, drafts and cancels change no bit of an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from exact_cpu import EXACT
from exact_mixes import Alone, Case, Wanted, check_crowd, check_mix, mixes, start
from exact_models import write_model
from examples import examples
from hypothesis import HealthCheck, given, settings

from draftline.engine.core import Core

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not EXACT, reason="this CPU's kernels, or those chosen for it, are only close"),
]

CASES = {
    "llama-float32": Case("llama-64", "float32", drafter="alternating"),
    "qwen3-bfloat16-fp8-cache": Case("qwen3-256", "bfloat16", drafter="wrong", kv_cache_dtype="fp8"),
    "mistral-int8": Case("mistral-256", "bfloat16", drafter="draft_model", quantization="int8", kv_cache_dtype="int8"),
    "llama-head": Case("llama-64", "float32", drafter="eagle3"),
    "qwen3-bfloat16-head": Case("qwen3-256", "bfloat16", drafter="eagle3", kv_cache_dtype="fp8"),
    "gemma3-float16": Case("gemma3-128", "float16", drafter="ngram"),
    "gpt2-float32": Case("gpt2-192", "float32", drafter="forced"),
}

_SLOW = ("qwen3-bfloat16-fp8-cache", "qwen3-bfloat16-head", "gpt2-float32", "gemma3-float16")

Engines = tuple[Case, Core, Alone]


PARAMETERS = [
    # The drafters, types and families of the slow ones are also those of other tests.
    pytest.param(case, id=name, marks=[pytest.mark.slow] * (name in _SLOW))
    for name, case in CASES.items()
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Case], tuple[Path, Alone]]]:
    """The model of a case, and the engine of its solo runs: one for all cases that differ in the mixed engine alone."""
    found: dict[Case, tuple[Path, Alone]] = {}
    with ExitStack() as ends:

        def of(case: Case) -> tuple[Path, Alone]:
            key = replace(case, drafter="none")
            if key not in found:
                folder = tmp_path_factory.mktemp("model")
                write_model(folder, case.shape)
                found[key] = folder, Alone(folder, key, "cpu")
                ends.callback(close, found[key][1].core)
            return found[key]

        yield of


@pytest.fixture(scope="module", params=PARAMETERS)
def engines(request: pytest.FixtureRequest, alone: Callable[[Case], tuple[Path, Alone]]) -> Iterator[Engines]:
    case: Case = request.param
    folder, solo = alone(case)
    core = start(folder, case, "cpu")
    yield case, core, solo
    close(core)


def close(core: Core) -> None:
    core.compiler.close()


def test_a_crowd_equals_solo_runs(engines: Engines) -> None:
    case, core, alone = engines
    # The second time it finds all prompts in the cache, which is the same for all drafters and types.
    check_crowd(core, alone, case, times=2 if case == CASES["llama-float32"] else 1)


@given(mix=mixes())
@settings(max_examples=examples(4), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_generated_mixes_equal_solo_runs(engines: Engines, mix: list[Wanted]) -> None:
    _, core, alone = engines
    check_mix(core, alone, mix)
