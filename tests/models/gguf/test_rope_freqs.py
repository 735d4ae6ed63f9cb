"""Llama 3's scaling from the factors that a GGUF file has, against transformers' frequencies."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from draftline.models.config import Llama3Scaling
from draftline.models.gguf.rope_freqs import llama3_factors, scaling_of_factors

SCALINGS = {
    "llama-3.1": (Llama3Scaling(8.0, 1.0, 4.0, 8192), 500_000.0, 128),
    "llama-3.2": (Llama3Scaling(32.0, 1.0, 4.0, 8192), 500_000.0, 64),
    "other context": (Llama3Scaling(16.0, 1.0, 4.0, 2048), 10_000.0, 128),
    "other bends": (Llama3Scaling(4.0, 1.0, 32.0, 4096), 100_000.0, 128),
}


def reference_factors(scaling: Llama3Scaling, theta: float, head_dim: int) -> list[float]:
    """Plain frequencies over transformers' scaled ones, in float32 as llama.cpp's converter has them."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_positions,
    }
    config = transformers.LlamaConfig(hidden_size=head_dim, num_attention_heads=1, rope_parameters=rope)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    return [float(factor) for factor in plain / scaled]


@pytest.mark.parametrize("name", SCALINGS)
def test_factors_are_transformers(name: str) -> None:
    scaling, theta, head_dim = SCALINGS[name]
    assert llama3_factors(scaling, theta, head_dim // 2) == pytest.approx(
        reference_factors(scaling, theta, head_dim), rel=1e-5
    )


@pytest.mark.parametrize("name", SCALINGS)
def test_the_scaling_is_recovered(name: str) -> None:
    scaling, theta, head_dim = SCALINGS[name]
    assert scaling_of_factors(reference_factors(scaling, theta, head_dim), theta) == scaling


def test_an_equivalent_scaling_is_recovered_where_low_is_not_one() -> None:
    scaling = Llama3Scaling(8.0, 2.0, 8.0, 8192)
    factors = reference_factors(scaling, 500_000.0, 128)
    found = scaling_of_factors(factors, 500_000.0)
    assert found is not None
    assert llama3_factors(found, 500_000.0, 64) == pytest.approx(factors, rel=1e-4)


def test_factors_of_one_are_no_scaling() -> None:
    assert scaling_of_factors([1.0] * 32, 10_000.0) is None


@pytest.mark.parametrize("factors", [[2.0] * 32, [1.0, 3.0] * 16, [0.5] * 32, [0.0] * 32, [1.0] * 31 + [float("nan")]])
def test_other_factors_are_refused(factors: list[float]) -> None:
    with pytest.raises(ValueError, match="not those of Llama 3"):
        scaling_of_factors(factors, 10_000.0)
