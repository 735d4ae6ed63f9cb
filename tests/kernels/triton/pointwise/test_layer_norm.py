from __future__ import annotations

import pytest
import torch
from closeness import assert_within, roundoff

from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.triton.pointwise.norms import layer_norm

EPS = 1e-5


@pytest.mark.parametrize("shape", [(1, 768), (3, 100)], ids=str)
@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_layer_norm(shape: tuple[int, int], mean: float, device: torch.device, rng: torch.Generator) -> None:
    x = mean + torch.randn(shape, generator=rng, device=device)
    weight, bias = torch.randn(2, shape[1], generator=rng, device=device)
    expected = ReferenceOps().layer_norm(x.double(), weight, bias, EPS)
    # The mean is rounded as a number as large as the input's, whatever is left when it is subtracted.
    largest = x.abs().max() * weight.abs() + bias.abs() + expected.abs()
    assert_within(layer_norm(x, weight, bias, EPS), expected, 8 * roundoff(x.dtype) * largest)
