"""``DummyCheckpoint``: a model's shape with random weights, for benchmarks and tests that need no trained model."""

from __future__ import annotations

import math
import zlib

import torch

from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.families import weight_shapes
from draftline.quant.tensor import RawTensor

STANDARD_DEVIATION = 0.02
"""Of the random weights: what HF's models are initialised with, small enough for finite logits at any depth."""


_POOL_SIZE = 4_194_301
"""How many numbers are drawn; larger weights repeat them. A prime, so that no two rows of a matrix are equal."""


class DummyCheckpoint:
    """Every weight that ``config`` implies, in BF16: normal where it is a matrix or a bias, ones where it is a norm.

    A weight depends on its name and shape alone, so two loads of one configuration give the same model. Drawing billions
    of numbers would take minutes: all weights are cut from one pool.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        generator = torch.Generator().manual_seed(0)
        self._pool = torch.empty(_POOL_SIZE).normal_(0.0, STANDARD_DEVIATION, generator=generator).to(torch.bfloat16)
        self._shapes = weight_shapes(config)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def tensor(self, name: str) -> RawTensor:
        """Make one weight. See `Checkpoint.tensor`."""
        shape = self._shapes.get(name)
        if shape is None:
            raise ModelLoadError(f"dummy weights: {name}: the configuration implies no such tensor")
        if name.endswith("norm.weight"):
            return RawTensor(name, "BF16", shape, torch.ones(shape, dtype=torch.bfloat16))
        start, count = zlib.crc32(name.encode()) % _POOL_SIZE, math.prod(shape)
        data = self._pool.repeat(-(-(start + count) // _POOL_SIZE))[start : start + count]
        return RawTensor(name, "BF16", shape, data.view(shape))
