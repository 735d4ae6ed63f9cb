"""Several ranks against one process: equal tokens, and log-probabilities that differ by rounding alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from exact_models import SHAPES, write_model

from draftline import LLM, RequestOutput, SamplingParams
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.families import config_from_hf

_UNIT = 2.0**-24
"""Float32's: a sum of n terms is off by at most n of them, relative to the terms' magnitudes (Higham 2002, section 4.2)."""

_SAMPLINGS = (
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0, prompt_logprobs=0),
    SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=12, ignore_eos=True, logprobs=0),
)


def bound(config: ModelConfig) -> float:
    """How far log-probabilities of two orders of addition may be apart.

    Each order is off by the additions on the way through all layers. Log-probabilities here are below 20, and are
    differences of two such values.
    """
    heads = config.num_heads * config.head_dim
    additions = config.num_layers * (2 * config.hidden_size + heads + config.intermediate_size) + config.hidden_size
    return 2 * additions * _UNIT * 2 * 20


def answers(folder: Path, ranks: int) -> list[RequestOutput]:
    draw = random.Random(4)
    prompts = [{"prompt_token_ids": draw.choices(range(256), k=length)} for length in (1, 17, 40, 63)]
    with LLM(
        str(folder), device="cpu", dtype="float32", tensor_parallel_size=ranks, kv_cache_memory_gib=0.05, max_num_seqs=8
    ) as llm:
        return [output for sampling in _SAMPLINGS for output in llm.generate(prompts, sampling, use_tqdm=False)]


def logprobs(output: RequestOutput) -> list[float]:
    positions = [*(output.prompt_logprobs or ()), *(output.outputs[0].logprobs or ())]
    return [position.chosen.logprob for position in positions]


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
    several, one = answers(tmp_path, ranks), answers(tmp_path, 1)
    assert [output.outputs[0].token_ids for output in several] == [output.outputs[0].token_ids for output in one]
    within = bound(config_from_hf(SHAPES[shape]))
    for output, expected in zip(several, one, strict=True):
        assert logprobs(output) == pytest.approx(logprobs(expected), rel=0, abs=within)


def test_ranks_that_would_have_no_head_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "gpt2-192")
    with pytest.raises(
        ModelLoadError, match=r"tensor_parallel_size: 4 ranks cannot share 3 query heads.* 1, 2, 3 work"
    ):
        LLM(str(tmp_path), device="cpu", tensor_parallel_size=4)


def test_a_rank_that_cannot_load_says_why(tmp_path: Path) -> None:
    write_model(tmp_path, "llama-64")
    with pytest.raises(ModelLoadError, match=r"kv_cache_memory_gib|the cache has room"):
        LLM(str(tmp_path), device="cpu", tensor_parallel_size=2, kv_cache_memory_gib=1e-6)
