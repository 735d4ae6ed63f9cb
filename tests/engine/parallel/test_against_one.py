"""Several ranks against one process: equal tokens, and log-probabilities that differ by rounding alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from exact_models import write_model
from several_and_one import check_several_against_one

from draftline import LLM
from draftline.models.errors import ModelLoadError


@pytest.mark.parametrize(
    ("shape", "ranks"),
    [
        ("llama-64", 2),
        *(
            pytest.param(shape, ranks, marks=pytest.mark.slow)
            for shape, ranks in [
                ("llama-576", 2),
                ("llama-576", 4),
                ("gemma3-128", 4),
                ("gpt2-192", 2),
                ("qwen3-256", 8),
            ]
        ),
    ],
)
def test_tokens_equal_those_of_one_process(shape: str, ranks: int, tmp_path: Path) -> None:
    write_model(tmp_path, shape)
    check_several_against_one(tmp_path, shape, ranks, "cpu")


def test_ranks_that_would_have_no_head_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "gpt2-192")
    with pytest.raises(
        ModelLoadError, match=r"tensor_parallel_size: 4 ranks cannot share 3 query heads.* 1, 2, 3 work"
    ):
        LLM(str(tmp_path), device="cpu", tensor_parallel_size=4)


@pytest.mark.slow  # `test_watchdog.py` has ranks that fail, and `test_remote_engine.py` models
def test_a_rank_that_cannot_load_says_why(tmp_path: Path) -> None:
    write_model(tmp_path, "llama-64")
    with pytest.raises(ModelLoadError, match=r"kv_cache_memory_gib|the cache has room"):
        LLM(str(tmp_path), device="cpu", tensor_parallel_size=2, kv_cache_memory_gib=1e-6)
