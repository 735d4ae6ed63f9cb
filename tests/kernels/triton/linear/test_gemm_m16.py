from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu
from torch.testing import assert_close

from draftline.kernels.triton.linear.gemm_m16 import MAX_GEMM_M16_ROWS, GemmM16Config, gemm_m16, gemm_m16_add


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
@pytest.mark.parametrize(("n", "k"), [(64, 256), (50, 576), (33, 96)])
def test_gemm_m16(rows: int, n: int, k: int, rng: torch.Generator) -> None:
    x, weight, bias = draw(rng, rows, k), draw(rng, n, k), draw(rng, n)
    assert_close(gemm_m16(x, weight), linear(x, weight), rtol=1e-4, atol=1e-4)
    assert_close(gemm_m16(x, weight, bias), linear(x, weight, bias), rtol=1e-4, atol=1e-4)


def test_the_result_is_added_to_the_residual(rng: torch.Generator) -> None:
    x, weight, residual = draw(rng, 3, 320), draw(rng, 50, 320), draw(rng, 3, 50)
    expected = residual + linear(x, weight)
    added = gemm_m16_add(x, weight, None, residual, None)
    assert added.prepared is None
    assert_close(added.values, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [GemmM16Config(16, 256, 2, 1), GemmM16Config(8, 64, 1, 2)], ids=["held", "loop"])
@pytest.mark.parametrize("rows", [2, 16])
def test_the_norm_after_the_addition_is_half_done(rows: int, config: GemmM16Config, rng: torch.Generator) -> None:
    x, down, residual, norm = draw(rng, rows, 200), draw(rng, 150, 200), draw(rng, rows, 150), draw(rng, 150)
    added = gemm_m16_add(x, down, None, residual, norm, config=config)
    expected = residual + linear(x, down)
    assert_close(added.values, expected, rtol=1e-4, atol=1e-4)
    prepared = added.prepared_for(norm)
    assert prepared is not None
    assert_close(prepared.scaled, expected * norm, rtol=1e-4, atol=1e-4)
    assert prepared.squares.shape == (rows, -(-150 // config.block_n))
    assert_close(prepared.squares.sum(1), expected.square().sum(1), rtol=1e-4, atol=1e-4)
    weight, bias = draw(rng, 2 * 40, 150) / 10, draw(rng, 80)
    normed = expected / (expected.square().mean(1, keepdim=True) + 1e-5).sqrt() * norm
    actual = gemm_m16(prepared.scaled, weight, bias, norm=(prepared.squares, 1e-5), config=config)
    assert_close(actual, linear(normed, weight, bias), rtol=1e-4, atol=1e-4)
    gate, up = linear(normed, weight, bias).chunk(2, dim=-1)
    actual = gemm_m16(prepared.scaled, weight, bias, norm=(prepared.squares, 1e-5), swiglu=True, config=config)
    assert_close(actual, silu(gate) * up, rtol=1e-4, atol=1e-4)


def test_what_is_prepared_is_for_one_norm(rng: torch.Generator) -> None:
    x, weight, residual, norm = draw(rng, 3, 64), draw(rng, 32, 64), draw(rng, 3, 32), draw(rng, 32)
    added = gemm_m16_add(x, weight, None, residual, norm)
    assert added.prepared_for(norm) is added.prepared
    assert added.prepared_for(norm.clone()) is None


def test_swiglu(rng: torch.Generator) -> None:
    x, weight, bias = draw(rng, 3, 320), draw(rng, 2 * 40, 320) / 20, draw(rng, 80)
    gate, up = linear(x, weight, bias).chunk(2, dim=-1)
    for config in (None, GemmM16Config(16, 128, 2, 3)):
        actual = gemm_m16(x, weight, bias, swiglu=True, config=config)
        assert_close(actual, silu(gate) * up, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [GemmM16Config(8, 128, 2, 3), GemmM16Config(32, 64, 1, 2)], ids=str)
def test_configs(config: GemmM16Config, rng: torch.Generator) -> None:
    x, weight = draw(rng, 4, 576), draw(rng, 40, 576)
    assert_close(gemm_m16(x, weight, config=config), linear(x, weight), rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_the_others(rng: torch.Generator) -> None:
    x, weight = draw(rng, 6, 256), draw(rng, 40, 256)
    assert torch.equal(gemm_m16(x, weight)[2:4], gemm_m16(x[2:4], weight))


@pytest.mark.parametrize("rows", [0, MAX_GEMM_M16_ROWS + 1])
def test_other_numbers_of_rows_are_refused(rows: int, device: torch.device) -> None:
    with pytest.raises(ValueError, match=f"x has {rows} rows; it takes 1 to 16"):
        gemm_m16(torch.zeros(rows, 32, device=device), torch.zeros(8, 32, device=device))
