from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.triton.pointwise.norms import layer_norm

EPS = 1e-5


@pytest.mark.parametrize("shape", [(1, 768), (3, 100)], ids=str)
@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_layer_norm(shape: tuple[int, int], mean: float, device: torch.device, rng: torch.Generator) -> None:
    x = mean + torch.randn(shape, generator=rng, device=device)
    weight, bias = torch.randn(2, shape[1], generator=rng, device=device)
    expected = ReferenceOps().layer_norm(x.double(), weight, bias, EPS).float()
    assert_close(layer_norm(x, weight, bias, EPS), expected, rtol=1e-5, atol=1e-5)
