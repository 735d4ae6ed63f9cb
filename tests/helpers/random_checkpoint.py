"""Tiny models with random weights, made in memory, for tests of everything around a model."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from draftline.models.config import ModelConfig
from draftline.models.families import weight_shapes
from draftline.quant import CONVERT
from draftline.quant.tensor import RawTensor

LLAMA = ModelConfig(
    family="LlamaForCausalLM",
    vocab_size=256,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_positions=512,
    norm_eps=1e-5,
    rope_theta=10_000.0,
    rope_scaling=None,
    sliding_windows=(None, None),
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    tied_embeddings=True,
    bos_token_id=None,
    eos_token_ids=(),
)


def llama(**fields: Any) -> ModelConfig:
    """A small Llama over bytes with some fields changed."""
    return replace(LLAMA, **fields)


class RandomCheckpoint:
    """All weights that a configuration implies; each depends on its name, its shape and the seed.

    Args:
        config: the model's.
        std: of the matrices; large enough that outputs are not the same at every position.
        weight_format: of the matrices, or what they are to be converted to; vectors are F32.
        seed: another seed gives another model.
        noise: the size of random numbers that are added to all weights, which makes a model that often agrees.
    """

    def __init__(
        self, config: ModelConfig, *, std: float, weight_format: str = "F32", seed: int = 0, noise: float = 0.0
    ) -> None:
        self.config = config
        self._std, self._format, self._seed, self._noise = std, weight_format, seed, noise
        self._shapes = weight_shapes(config)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def tensor(self, name: str) -> RawTensor:
        shape = self._shapes[name]
        draw = torch.Generator().manual_seed(zlib.crc32(name.encode()) + self._seed)
        weight = torch.randn(shape, generator=draw) * (0.2 if len(shape) == 1 else self._std)
        weight += self._noise * torch.randn(shape, generator=draw)
        if len(shape) == 1:
            return RawTensor(name, "F32", shape, weight if name.endswith("bias") else 1.0 + weight)
        if self._format == "F32":
            return RawTensor(name, "F32", shape, weight)
        if self._format in CONVERT:
            return RawTensor(name, "F32", shape, weight, convert_to=self._format)
        blocks = quantize(weight.numpy(), GGMLQuantizationType[self._format])
        return RawTensor(name, self._format, shape, torch.from_numpy(blocks))
