from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu
from torch.testing import assert_close

from draftline.kernels.triton.linear.gemm_m16 import (
    MAX_GEMM_M16_ROWS,
    GemmM16Config,
    can_normalize,
    gemm_m16,
    gemm_m16_config,
)
from draftline.kernels.triton.pointwise.norms import rms_norm

EPS = 1e-5

CONFIGS = [
    GemmM16Config(64, 64, early=0, num_stages=3),
    GemmM16Config(16, 128, early=0, num_stages=3, ahead=64),
    GemmM16Config(32, 64, early=5, num_stages=1),
    GemmM16Config(64, 256, early=1, num_stages=1),
    GemmM16Config(32, 32, early=2, num_stages=2, ahead=64),
]
"""All, none, or some of 320 channels before the wait, with a last tile and without."""


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
@pytest.mark.parametrize(("n", "k"), [(64, 256), (50, 576), (33, 92)])
def test_gemm_m16(rows: int, n: int, k: int, rng: torch.Generator) -> None:
    x, weight, bias = draw(rng, rows, k), draw(rng, n, k), draw(rng, n)
    assert_close(gemm_m16(x, weight), linear(x, weight), rtol=1e-4, atol=1e-4)
    assert_close(gemm_m16(x, weight, bias), linear(x, weight, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [None, *CONFIGS], ids=str)
def test_everything_fused(config: GemmM16Config | None, rng: torch.Generator) -> None:
    x, weight, bias, residual = draw(rng, 3, 320), draw(rng, 2 * 40, 320) / 20, draw(rng, 80), draw(rng, 3, 80)
    before = residual.clone()
    product = linear(x, weight, bias)
    actual = gemm_m16(x, weight, bias, residual=residual, config=config)
    assert_close(actual, residual + product, rtol=1e-4, atol=1e-4)
    assert torch.equal(residual, before)
    gate, up = product.chunk(2, dim=-1)
    actual = gemm_m16(x, weight, bias, swiglu=True, config=config)
    assert_close(actual, silu(gate) * up, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("dots_in_order")
def test_a_row_has_the_same_bits_in_every_batch_and_config(rng: torch.Generator) -> None:
    x, weight, bias, residual = draw(rng, 16, 320), draw(rng, 40, 320), draw(rng, 40), draw(rng, 16, 40)
    together = gemm_m16(x, weight, bias, residual=residual)
    for config in (None, *CONFIGS):
        for rows in (slice(3, 4), slice(3, 5), slice(0, 16)):
            assert torch.equal(gemm_m16(x[rows], weight, bias, residual=residual[rows], config=config), together[rows])
    together = gemm_m16(x, weight, bias, swiglu=True)
    for config in CONFIGS:
        assert torch.equal(gemm_m16(x[7:9], weight, bias, swiglu=True, config=config), together[7:9])


@pytest.mark.usefixtures("dots_in_order")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("config", [None, *CONFIGS], ids=str)
def test_a_norm_in_the_launch_has_the_bits_of_one_before_it(
    config: GemmM16Config | None, dtype: torch.dtype, rng: torch.Generator
) -> None:
    x, norm, weight = draw(rng, 8, 320).to(dtype), draw(rng, 320).to(dtype), (draw(rng, 80, 320) / 18).to(dtype)
    bias, residual = draw(rng, 80).to(dtype), draw(rng, 8, 80).to(dtype)
    for rows in (1, 2, 4, 5, 8):
        assert can_normalize(x[:rows])
        normed = rms_norm(x[:rows], norm, EPS)
        expected = gemm_m16(normed, weight, bias, residual=residual[:rows])
        actual = gemm_m16(x[:rows], weight, bias, residual=residual[:rows], norm=(norm, EPS), config=config)
        assert torch.equal(actual, expected)
        expected = gemm_m16(normed, weight, swiglu=True)
        assert torch.equal(gemm_m16(x[:rows], weight, swiglu=True, norm=(norm, EPS), config=config), expected)


@pytest.mark.usefixtures("dots_in_order")
@pytest.mark.parametrize("k", [48, 576, 4096, 14336])
def test_a_norm_of_rows_in_parts_has_the_same_bits(k: int, rng: torch.Generator) -> None:
    """One part, several, and a last one that is not whole."""
    x, norm, weight = draw(rng, 8, k), draw(rng, k), draw(rng, 16, k)
    for rows in (1, 4, 8):
        expected = gemm_m16(rms_norm(x[:rows], norm, EPS), weight)
        assert torch.equal(gemm_m16(x[:rows], weight, norm=(norm, EPS)), expected)


def test_rows_that_no_launch_normalizes(device: torch.device) -> None:
    x, weight, norm = (
        torch.zeros(9, 64, device=device),
        torch.zeros(8, 64, device=device),
        torch.ones(64, device=device),
    )
    assert not can_normalize(x), "too many"
    assert not can_normalize(torch.zeros(4, 128, device=device)[:, :64]), "not contiguous"
    assert not can_normalize(torch.zeros(8, 20000, device=device)), "too long"
    with pytest.raises(ValueError, match="9 rows of 64 channels are too many for a norm"):
        gemm_m16(x, weight, norm=(norm, EPS))


@pytest.mark.parametrize("rows", [0, MAX_GEMM_M16_ROWS + 1])
def test_other_numbers_of_rows_are_refused(rows: int, device: torch.device) -> None:
    with pytest.raises(ValueError, match=f"x has {rows} rows; it takes 1 to 16"):
        gemm_m16(torch.zeros(rows, 32, device=device), torch.zeros(8, 32, device=device))


def test_a_small_model_loads_all_channels_early() -> None:
    def early(k: int, rows: int = 4096, *, overlap: bool = True) -> int:
        config = gemm_m16_config(rows, k, overlap=overlap)
        return config.early * config.block_k + k % config.block_k

    assert [early(k) for k in (576, 768, 1024)] == [576, 768, 1024]
    assert [early(k) for k in (200, 1536, 4096)] == [200, 512, 512]
    assert early(1024, 151936) == 256, "more programs than the device holds at once"
    assert early(1024, overlap=False) == 0
