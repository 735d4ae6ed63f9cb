"""Rotary position embeddings: the table of cosines and sines (Su et al. 2021, https://arxiv.org/abs/2104.09864)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from draftline.models.config import Llama3Scaling, ModelConfig, YarnScaling


def rope_table(config: ModelConfig, device: torch.device) -> Tensor:
    """Cosines and sines of every position, [max_positions, 2, head_dim / 2] float32, in the half-split layout."""
    frequencies = _frequencies(config.rope_theta, config.head_dim)
    match config.rope_scaling:
        case Llama3Scaling() as scaling:
            return _table(_scale_llama3(frequencies, scaling), config, device)
        case YarnScaling() as scaling:
            return scaling.magnitude * _table(_scale_yarn(frequencies, scaling, config.rope_theta), config, device)
        case None:
            return _table(frequencies / config.rope_factor, config, device)


def local_rope_table(config: ModelConfig, device: torch.device) -> Tensor:
    """The same with ``local_rope_theta``, unscaled, for layers with a sliding window."""
    return _table(_frequencies(config.local_rope_theta or config.rope_theta, config.head_dim), config, device)


def no_rotation(config: ModelConfig, device: torch.device) -> Tensor:
    """The table that rotates nothing, for models whose positions are learned."""
    return _table(torch.zeros(config.head_dim // 2), config, device)


def _frequencies(theta: float, head_dim: int) -> Tensor:
    return 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))


def _table(frequencies: Tensor, config: ModelConfig, device: torch.device) -> Tensor:
    angles = torch.outer(torch.arange(config.max_positions, dtype=torch.float32), frequencies)
    return torch.stack((angles.cos(), angles.sin()), dim=1).to(device)


def _scale_llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3.1's scaling: stretches long wavelengths by ``factor``, keeps short ones, blends in between."""
    wavelengths = 2 * math.pi / frequencies
    blend = (scaling.original_max_positions / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return torch.lerp(frequencies / scaling.factor, frequencies, blend.clamp(0, 1))


def _scale_yarn(frequencies: Tensor, scaling: YarnScaling, theta: float) -> Tensor:
    """YaRN's scaling: divides low frequencies by ``factor``, keeps high ones, blends in between."""
    pairs = len(frequencies)

    def pair_of(turns: float) -> float:
        """The pair of channels, as a fraction, that turns so often in the original context."""
        return pairs * math.log(scaling.original_max_positions / (turns * 2 * math.pi)) / math.log(theta)

    first = max(math.floor(pair_of(scaling.beta_fast)), 0)
    last = min(math.ceil(pair_of(scaling.beta_slow)), 2 * pairs - 1)
    divided = (torch.arange(pairs, dtype=torch.float32) - first) / (last - first or 0.001)
    return torch.lerp(frequencies, frequencies / scaling.factor, divided.clamp(0, 1))
