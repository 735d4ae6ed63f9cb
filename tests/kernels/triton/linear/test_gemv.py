from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu
from torch.testing import assert_close

from draftline.kernels.triton.linear.gemv import GemvConfig, gemv

EPS = 1e-5


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


def near(actual: Tensor, expected: Tensor) -> None:
    assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def expected_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


@pytest.mark.parametrize(("n", "k"), [(64, 256), (50, 576), (33, 1500), (5, 4104)])
def test_gemv(n: int, k: int, rng: torch.Generator) -> None:
    x, weight, bias = draw(rng, 1, k), draw(rng, n, k), draw(rng, n)
    near(gemv(x, weight, None), linear(x, weight))
    near(gemv(x, weight, bias), linear(x, weight, bias))


def test_the_norm_of_the_input_is_part_of_it(rng: torch.Generator) -> None:
    x, scale, weight, bias = draw(rng, 1, 320), draw(rng, 320), draw(rng, 48, 320), draw(rng, 48)
    near(gemv(x, weight, bias, norm=(scale, EPS)), linear(expected_norm(x, scale), weight, bias))


def test_swiglu(rng: torch.Generator) -> None:
    x, scale, weight, bias = draw(rng, 1, 320), draw(rng, 320), draw(rng, 2 * 41, 320) / 20, draw(rng, 82)
    gate, up = linear(expected_norm(x, scale), weight, bias).chunk(2, dim=-1)
    near(gemv(x, weight, bias, norm=(scale, EPS), swiglu=True), silu(gate) * up)


def test_the_result_is_added_to_the_residual(rng: torch.Generator) -> None:
    x, weight, residual = draw(rng, 1, 320), draw(rng, 50, 320), draw(rng, 1, 50)
    near(gemv(x, weight, None, residual=residual), residual + linear(x, weight))


@pytest.mark.parametrize("config", [GemvConfig(4, 256, 2), GemvConfig(2, 512, 1), GemvConfig(1, 1024, 4)], ids=str)
def test_configs(config: GemvConfig, rng: torch.Generator) -> None:
    x, weight = draw(rng, 1, 576), draw(rng, 41, 576)
    near(gemv(x, weight, None, config=config), linear(x, weight))
