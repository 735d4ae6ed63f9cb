from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu
from torch.testing import assert_close

from draftline.kernels.triton.skinny_gemm import MAX_ROWS, SkinnyConfig, skinny_linear


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
@pytest.mark.parametrize(("n", "k"), [(64, 256), (50, 576), (33, 96)])
def test_skinny_linear(rows: int, n: int, k: int, rng: torch.Generator) -> None:
    x, weight, bias = draw(rng, rows, k), draw(rng, n, k), draw(rng, n)
    assert_close(skinny_linear(x, weight), linear(x, weight), rtol=1e-4, atol=1e-4)
    assert_close(skinny_linear(x, weight, bias), linear(x, weight, bias), rtol=1e-4, atol=1e-4)


def test_the_result_is_added_to_the_residual(rng: torch.Generator) -> None:
    x, weight, residual = draw(rng, 3, 320), draw(rng, 50, 320), draw(rng, 3, 50)
    expected = residual + linear(x, weight)
    assert_close(skinny_linear(x, weight, residual=residual), expected, rtol=1e-4, atol=1e-4)


def test_swiglu(rng: torch.Generator) -> None:
    x, weight, bias = draw(rng, 3, 320), draw(rng, 2 * 40, 320) / 20, draw(rng, 80)
    gate, up = linear(x, weight, bias).chunk(2, dim=-1)
    for config in (None, SkinnyConfig(16, 128, 2, 3)):
        actual = skinny_linear(x, weight, bias, swiglu=True, config=config)
        assert_close(actual, silu(gate) * up, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [SkinnyConfig(8, 128, 2, 3), SkinnyConfig(32, 64, 1, 2)], ids=str)
def test_configs(config: SkinnyConfig, rng: torch.Generator) -> None:
    x, weight = draw(rng, 4, 576), draw(rng, 40, 576)
    assert_close(skinny_linear(x, weight, config=config), linear(x, weight), rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_the_others(rng: torch.Generator) -> None:
    x, weight = draw(rng, 6, 256), draw(rng, 40, 256)
    assert torch.equal(skinny_linear(x, weight)[2:4], skinny_linear(x[2:4], weight))


@pytest.mark.parametrize("rows", [0, MAX_ROWS + 1])
def test_other_numbers_of_rows_are_refused(rows: int, device: torch.device) -> None:
    with pytest.raises(ValueError, match=f"x has {rows} rows; it takes 1 to 16"):
        skinny_linear(torch.zeros(rows, 32, device=device), torch.zeros(8, 32, device=device))
