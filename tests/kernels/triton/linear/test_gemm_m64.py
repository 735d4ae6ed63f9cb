from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu
from torch.testing import assert_close

from draftline.kernels.triton.linear.gemm_m64 import MAX_GEMM_M64_ROWS, GemmM64Config, gemm_m64


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


@pytest.mark.parametrize("config", [None, GemmM64Config(64, 64, 4, 3)], ids=str)
@pytest.mark.parametrize("rows", [20, 64])
@pytest.mark.parametrize(("n", "k"), [(64, 256), (50, 576), (33, 92)])
def test_gemm_m64(n: int, k: int, rows: int, config: GemmM64Config | None, rng: torch.Generator) -> None:
    x, weight, bias = draw(rng, rows, k), draw(rng, n, k), draw(rng, n)
    assert_close(gemm_m64(x, weight, None, config=config), linear(x, weight), rtol=1e-4, atol=1e-4)
    assert_close(gemm_m64(x, weight, bias, config=config), linear(x, weight, bias), rtol=1e-4, atol=1e-4)


def test_swiglu(rng: torch.Generator) -> None:
    x, weight, bias = draw(rng, 30, 320), draw(rng, 2 * 40, 320) / 20, draw(rng, 80)
    gate, up = linear(x, weight, bias).chunk(2, dim=-1)
    assert_close(gemm_m64(x, weight, bias, swiglu=True), silu(gate) * up, rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_the_others(rng: torch.Generator) -> None:
    x, weight = draw(rng, 30, 256), draw(rng, 40, 256)
    assert torch.equal(gemm_m64(x, weight, None)[12:14], gemm_m64(x[12:14], weight, None))


@pytest.mark.parametrize("rows", [0, MAX_GEMM_M64_ROWS + 1])
def test_other_numbers_of_rows_are_refused(rows: int, device: torch.device) -> None:
    with pytest.raises(ValueError, match=f"x has {rows} rows; it takes 1 to 64"):
        gemm_m64(torch.zeros(rows, 32, device=device), torch.zeros(8, 32, device=device), None)
