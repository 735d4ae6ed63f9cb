"""What the tests of single operations on a GPU share: types, models' heads, random tensors, and a bound on errors."""

from __future__ import annotations

import torch
from torch import Tensor

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

HEADS = {
    "32x8x128": ((32, 8, 128),),
    "16x8x128": ((16, 8, 128),),
    "9x3x64": ((9, 3, 64),),
    "28x4x128": ((28, 4, 128),),
    "8x8x80": ((8, 8, 80),),
    "8x8x96": ((8, 8, 96),),
    "8x1x256": ((8, 1, 256),),
}
"""By name: a model's query heads, key/value heads and the size of a head."""


def draw(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(shape, generator=rng, device=rng.device).to(dtype)


def assert_near(actual: Tensor, expected: Tensor, bound: float = 8e-3) -> None:
    """The relative error in the Euclidean norm; NaN never passes."""
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    assert error < bound, f"relative error {error:.2e}, bound {bound:.0e}"
