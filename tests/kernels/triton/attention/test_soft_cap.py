from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from draftline.kernels.triton.attention.soft_cap import soft_cap


@pytest.mark.parametrize(("rows", "width"), [(1, 5000), (3, 96)])
def test_soft_cap(rows: int, width: int, device: torch.device, rng: torch.Generator) -> None:
    x = 40 * torch.randn(rows, width, generator=rng, device=device)
    assert_close(soft_cap(x, 30.0), 30 * torch.tanh(x / 30), rtol=1e-5, atol=1e-5)


# The interpreter's numpy warns where the device's exp just returns infinity.
@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
def test_large_inputs_have_the_cap_as_limit(device: torch.device) -> None:
    x = torch.tensor([[-1e30, -3000.0, 3000.0, 1e30]], device=device)
    assert_close(soft_cap(x, 30.0), torch.tensor([[-30.0, -30.0, 30.0, 30.0]], device=device))
