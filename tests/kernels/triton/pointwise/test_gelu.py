from __future__ import annotations

import pytest
import torch
from torch.nn.functional import gelu as torch_gelu
from torch.testing import assert_close

from draftline.kernels.triton.pointwise.activations import gelu, gelu_mul

# The interpreter's numpy warns where the device's exp just returns infinity.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


@pytest.mark.parametrize(("rows", "width"), [(1, 1536), (3, 96), (2, 1025)])
def test_gelu_and_gelu_mul(rows: int, width: int, device: torch.device, rng: torch.Generator) -> None:
    gate_up = torch.randn(rows, 2 * width, generator=rng, device=device) * 4
    expected = torch_gelu(gate_up, approximate="tanh")
    assert_close(gelu(gate_up), expected, rtol=1e-5, atol=1e-6)
    assert_close(gelu_mul(gate_up), expected[:, :width] * gate_up[:, width:], rtol=1e-5, atol=1e-5)


def test_large_inputs_stay_finite(device: torch.device) -> None:
    x = torch.tensor([[-1e6, -60.0, 60.0, 1e6]], device=device)
    assert_close(gelu(x), torch.tensor([[0.0, 0.0, 60.0, 1e6]], device=device), rtol=0, atol=1e-20)
