"""The same answers from several ranks and from one: equal tokens, and log-probabilities that differ by rounding alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from exact_models import SHAPES

from draftline import LLM, RequestOutput, SamplingParams
from draftline.models.config import ModelConfig
from draftline.models.families import config_from_hf

_UNIT = 2.0**-24
"""Float32's: a sum of n terms is off by at most n of them, relative to the terms' magnitudes (Higham 2002, section 4.2)."""

_SAMPLINGS = (
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0, prompt_logprobs=0),
    SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=12, ignore_eos=True, logprobs=0),
)


def _bound(config: ModelConfig) -> float:
    """How far log-probabilities of two orders of addition may be apart.

    Each order is off by the additions on the way through all layers. Log-probabilities here are below 20, and are
    differences of two such values.
    """
    heads = config.num_heads * config.head_dim
    additions = config.num_layers * (2 * config.hidden_size + heads + config.intermediate_size) + config.hidden_size
    return 2 * additions * _UNIT * 2 * 20


def _answers(folder: Path, ranks: int, device: str) -> list[RequestOutput]:
    draw = random.Random(4)
    prompts = [{"prompt_token_ids": draw.choices(range(256), k=length)} for length in (1, 17, 40, 63)]
    with LLM(
        str(folder),
        device=device,
        dtype="float32",
        tensor_parallel_size=ranks,
        kv_cache_memory_gib=0.05,
        max_num_seqs=8,
        draft_length="fixed",  # else each engine would measure the cost of drafts
    ) as llm:
        return [output for sampling in _SAMPLINGS for output in llm.generate(prompts, sampling, use_tqdm=False)]


def _logprobs(output: RequestOutput) -> list[float]:
    positions = [*(output.prompt_logprobs or ()), *(output.outputs[0].logprobs or ())]
    return [position.chosen.logprob for position in positions]


def check_several_against_one(folder: Path, shape: str, ranks: int, device: str) -> None:
    """The model of this shape in ``folder``, in float32."""
    several, one = _answers(folder, ranks, device), _answers(folder, 1, device)
    assert [output.outputs[0].token_ids for output in several] == [output.outputs[0].token_ids for output in one]
    within = _bound(config_from_hf(SHAPES[shape]))
    for output, expected in zip(several, one, strict=True):
        assert _logprobs(output) == pytest.approx(_logprobs(expected), rel=0, abs=within)
