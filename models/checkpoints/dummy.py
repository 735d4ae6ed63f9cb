"""``DummyCheckpoint``: a model's shape with random weights, for benchmarks and tests that need no trained model."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from functools import cache

import torch
from typing_extensions import override

from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.families import weight_shapes
from draftline.models.weight_shapes import Shape
from draftline.quant.tensor import RawTensor

STANDARD_DEVIATION = 0.02
"""Of the random weights: as HF initialises models, small enough for finite logits at any depth."""


_POOL_SIZE = 4_194_301
"""The number of random numbers; larger weights repeat them. A prime, so that no two rows of a matrix are equal."""


class DummyCheckpoint(Checkpoint):
    """Every weight that ``config`` implies, in BF16: normal where it is a matrix or a bias, ones where it is a norm.

    A weight depends only on its name and shape, so two loads of one configuration give the same model. All weights are
    slices of one pool, since drawing billions of numbers would take minutes.
    """

    def __init__(
        self,
        config: ModelConfig,
        shapes: Mapping[str, Shape] | None = None,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - it is a constant
    ) -> None:
        """A checkpoint whose weights are made when they are read.

        Args:
            config: the model's shape.
            shapes: of the weights, where they are not those that ``config`` implies.
            device: where the weights are made. Their values are the same everywhere.
        """
        self.config = config
        self._pool = _pool().to(device)
        self._shapes = weight_shapes(config) if shapes is None else shapes

    @override
    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    @override
    def tensor(self, name: str) -> RawTensor:
        shape = self._shapes.get(name)
        if shape is None:
            raise ModelLoadError(f"dummy weights: {name}: the configuration implies no such tensor")
        if name.endswith("norm.weight"):
            return RawTensor(name, "BF16", shape, torch.ones(shape, dtype=torch.bfloat16, device=self._pool.device))
        start, count = zlib.crc32(name.encode()) % _POOL_SIZE, math.prod(shape)
        if start + count <= _POOL_SIZE:
            data = self._pool[start : start + count].clone()
        else:
            data = self._pool.repeat(-(-(start + count) // _POOL_SIZE))[start : start + count]
        return RawTensor(name, "BF16", shape, data.view(shape))


@cache
def _pool() -> torch.Tensor:
    """The random numbers, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    return torch.empty(_POOL_SIZE).normal_(0.0, STANDARD_DEVIATION, generator=generator).to(torch.bfloat16)
