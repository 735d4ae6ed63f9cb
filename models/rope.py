"""Rotary position embeddings: the table of cosines and sines (Su et al. 2021, https://arxiv.org/abs/2104.09864)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from draftline.models.config import ModelConfig, RopeScaling


def rope_table(config: ModelConfig, device: torch.device) -> Tensor:
    """Cosines and sines of every position, [max_positions, 2, head_dim / 2] float32, in the half-split layout."""
    frequencies = _frequencies(config.rope_theta, config.head_dim)
    if config.rope_scaling is not None:
        frequencies = _scale_llama3(frequencies, config.rope_scaling)
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


def _scale_llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's scaling: stretches long wavelengths by ``factor``, keeps short ones, blends in between."""
    wavelengths = 2 * math.pi / frequencies
    blend = (scaling.original_max_positions / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return torch.lerp(frequencies / scaling.factor, frequencies, blend.clamp(0, 1))
