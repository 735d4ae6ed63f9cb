from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu
from torch.testing import assert_close

from draftline.kernels.triton.pointwise.activations import silu_mul


@pytest.mark.parametrize(("rows", "width"), [(1, 1536), (3, 96), (2, 1025)])
def test_silu_mul(rows: int, width: int, device: torch.device, rng: torch.Generator) -> None:
    gate_up = torch.randn(rows, 2 * width, generator=rng, device=device) * 4
    assert_close(silu_mul(gate_up), silu(gate_up[:, :width]) * gate_up[:, width:])


# The interpreter's numpy warns where the device's exp just returns infinity.
@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
def test_silu_mul_of_large_gates_stays_finite(device: torch.device) -> None:
    gate_up = torch.tensor([[-200.0, -60.0, 60.0, 200.0, 1.0, 1.0, 1.0, 1.0]], device=device)
    assert_close(silu_mul(gate_up), torch.tensor([[0.0, 0.0, 60.0, 200.0]], device=device), rtol=0, atol=1e-20)
