"""Engines of several ranks on a CPU: within a number of ranks, batches, chunks, prefixes, preemption and drafts change no bit.

Two ranks add two partial sums in any order to the same bits, so four tell whether the order is fixed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from exact_cpu import EXACT
from exact_mixes import Alone, Case, check_crowd, start
from exact_models import write_model
from patience import wait_until

CASES = {
    "llama-2": Case("llama-64", "float32", drafter="alternating", ranks=2),
    "llama-4": Case("llama-64", "float32", drafter="draft_model", ranks=4),
    "llama-2-draft": Case("llama-64", "float32", drafter="alternating", ranks=2, draft_ranks=2),
    "qwen3-4-draft": Case(
        "qwen3-256", "bfloat16", drafter="draft_model", ranks=4, draft_ranks=4, kv_cache_dtype="int8"
    ),
    "smollm2-2": Case("llama-576", "float16", drafter="ngram", ranks=2),
    "smollm2-4": Case("llama-576", "bfloat16", drafter="wrong", ranks=4, kv_cache_dtype="int8"),
    "qwen2-2": Case("qwen2-128", "float32", ranks=2),
    "qwen3-2": Case("qwen3-256", "bfloat16", drafter="eagle3", ranks=2, kv_cache_dtype="fp8"),
    "qwen3-8": Case("qwen3-256", "float32", ranks=8),
    "mistral-4-int8": Case("mistral-256", "bfloat16", drafter="draft_model", quantization="int8", ranks=4),
    "mistral-2-fp8": Case("mistral-256", "float32", drafter="forced", quantization="fp8", ranks=2),
    "gemma3-2": Case("gemma3-128", "float16", drafter="ngram", ranks=2),
    "gpt2-3": Case("gpt2-192", "float32", drafter="forced", ranks=3),
}
_QUICK = "llama-2-draft"


@pytest.mark.skipif(not EXACT, reason="this CPU's kernels, or those chosen for it, are only close")
@pytest.mark.parametrize(
    "name", [name if name == _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_a_crowd_equals_solo_runs(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    write_model(tmp_path, case.shape)
    core, alone = start(tmp_path, case, "cpu"), Alone(tmp_path, case, "cpu")
    try:
        check_crowd(core, alone, case, times=1 if name == _QUICK else 2)
        # The watchdog takes a rank that has begun fewer exchanges for one that the others wait for. The last samples may
        # still be on their way to some.
        for each in (core, alone.core):
            wait_until(lambda counts=each._runner._ranks._progress._counts: len(set(counts.tolist())) == 1)
    finally:
        for each in (core, alone.core):
            each.close()
