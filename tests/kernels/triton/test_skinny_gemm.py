from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu
from torch.testing import assert_close

from draftline.kernels.triton.skinny_gemm import (
    MAX_ROWS,
    InputNorm,
    SkinnyConfig,
    norm_linear,
    norm_swiglu,
    skinny_linear,
)

EPS = 1e-5


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


def expected_norm(total: Tensor, weight: Tensor) -> Tensor:
    return total / (total.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
@pytest.mark.parametrize(("n", "k"), [(64, 256), (50, 576), (33, 96)])
def test_skinny_linear(rows: int, n: int, k: int, rng: torch.Generator) -> None:
    x, weight, bias = draw(rng, rows, k), draw(rng, n, k), draw(rng, n)
    assert_close(skinny_linear(x, weight), linear(x, weight), rtol=1e-4, atol=1e-4)
    assert_close(skinny_linear(x, weight, bias), linear(x, weight, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 3])
def test_norm_linear(rows: int, rng: torch.Generator) -> None:
    x, residual, scale, weight = draw(rng, rows, 320), draw(rng, rows, 320), draw(rng, 320), draw(rng, 48, 320)
    out, total = norm_linear(x, InputNorm(residual, scale, EPS), weight)
    assert_close(total, x + residual)
    assert_close(out, linear(expected_norm(x + residual, scale), weight), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 3])
def test_norm_swiglu(rows: int, rng: torch.Generator) -> None:
    x, residual, scale, weight = draw(rng, rows, 320), draw(rng, rows, 320), draw(rng, 320), draw(rng, 2 * 40, 320) / 20
    out, total = norm_swiglu(x, InputNorm(residual, scale, EPS), weight)
    gate, up = linear(expected_norm(x + residual, scale), weight).chunk(2, dim=-1)
    assert_close(total, x + residual)
    assert_close(out, silu(gate) * up, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "config"),
    [
        (1, SkinnyConfig(4, 256, 2, 1)),
        (1, SkinnyConfig(2, 512, 1, 1)),
        (4, SkinnyConfig(8, 128, 2, 3)),
        (4, SkinnyConfig(32, 64, 1, 2)),
    ],
    ids=str,
)
def test_configs(rows: int, config: SkinnyConfig, rng: torch.Generator) -> None:
    x, weight = draw(rng, rows, 576), draw(rng, 40, 576)
    assert_close(skinny_linear(x, weight, config=config), linear(x, weight), rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_the_others(rng: torch.Generator) -> None:
    x, weight = draw(rng, 6, 256), draw(rng, 40, 256)
    assert torch.equal(skinny_linear(x, weight)[2:4], skinny_linear(x[2:4], weight))


@pytest.mark.parametrize("rows", [0, MAX_ROWS + 1])
def test_other_numbers_of_rows_are_refused(rows: int, device: torch.device) -> None:
    with pytest.raises(ValueError, match=f"x has {rows} rows; it takes 1 to 16"):
        skinny_linear(torch.zeros(rows, 32, device=device), torch.zeros(8, 32, device=device))
