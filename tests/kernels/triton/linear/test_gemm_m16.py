from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu
from torch.testing import assert_close

from draftline.kernels.triton.linear.gemm_m16 import (
    GemmM16Config,
    can_normalize,
    gemm_m16,
    gemm_m16_config,
    max_gemm_m16_rows,
)
from draftline.kernels.triton.pointwise.norms import rms_norm

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


@pytest.mark.parametrize("rows", [1, 2, 5, 16, 17, 40, 64])
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
    x, weight, bias, residual = draw(rng, 50, 320), draw(rng, 40, 320), draw(rng, 40), draw(rng, 50, 40)
    together = gemm_m16(x, weight, bias, residual=residual)
    for config in (None, *CONFIGS):
        for rows in (slice(3, 4), slice(3, 5), slice(0, 16), slice(7, 40)):
            assert torch.equal(gemm_m16(x[rows], weight, bias, residual=residual[rows], config=config), together[rows])
    together = gemm_m16(x, weight, bias, swiglu=True)
    for config in CONFIGS:
        for rows in (slice(7, 9), slice(20, 50)):
            assert torch.equal(gemm_m16(x[rows], weight, bias, swiglu=True, config=config), together[rows])


@pytest.mark.usefixtures("dots_in_order")
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, marks=[pytest.mark.slow] * (config not in (None, CONFIGS[2])))
        for config in [None, *CONFIGS]
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=str)
def test_a_norm_inside_has_the_bits_of_its_own_launch(
    dtype: torch.dtype, config: GemmM16Config | None, rng: torch.Generator
) -> None:
    x, norm, weight = (draw(rng, *shape).to(dtype) for shape in ((40, 320), (320,), (40, 320)))
    for rows in (1, 2, 5, 8, 9, 40):
        normed = rms_norm(x[:rows], norm, 1e-5)
        for swiglu in (False, True):
            inside = gemm_m16(x[:rows], weight, norm=(norm, 1e-5), swiglu=swiglu, config=config)
            assert torch.equal(inside, gemm_m16(normed, weight, swiglu=swiglu, config=config))


@pytest.mark.usefixtures("dots_in_order")
@pytest.mark.parametrize("k", [16, 92, 256, 1000])
def test_a_norm_inside_of_any_width(k: int, rng: torch.Generator) -> None:
    x, norm, weight = draw(rng, 3, k), draw(rng, k), draw(rng, 24, k)
    assert torch.equal(gemm_m16(x, weight, norm=(norm, 1e-5)), gemm_m16(rms_norm(x, norm, 1e-5), weight))


def test_few_rows_of_small_models_are_normalized_inside() -> None:
    def can(rows: int, k: int, n: int = 3072) -> bool:
        x, weight = (torch.empty(count, k, dtype=torch.bfloat16, device="meta") for count in (rows, n))
        return can_normalize(x, weight)

    assert [can(rows, 576) for rows in (1, 8, 9)] == [True, True, False]
    assert [can(rows, 576, n=960) for rows in (9, 64, 65)] == [True, True, False], "a narrow weight has few programs"
    assert [can(1, k) for k in (1024, 2048)] == [True, False], "a row would take too many registers"
    assert not can(1, 576, n=49152), "more programs than the device holds at once would compute it"
    assert not can_normalize(torch.empty(2, 1152, device="meta")[:, :576], torch.empty(64, 576, device="meta"))


def test_only_small_weights_are_read_for_more_rows_than_a_program_has() -> None:
    assert max_gemm_m16_rows(3072 * 576, overlap=True) == 32  # SmolLM2 135M's gates and ups
    assert max_gemm_m16_rows(3072 * 576, overlap=False) == 16
    assert max_gemm_m16_rows(4096 * 1024, overlap=True) == 16


def test_a_small_model_loads_all_channels_early() -> None:
    def early(k: int, rows: int = 4096, *, overlap: bool = True) -> int:
        config = gemm_m16_config(1, rows, k, overlap=overlap)
        return config.early * config.block_k + k % config.block_k

    assert [early(k) for k in (576, 768, 1024)] == [576, 768, 1024]
    assert [early(k) for k in (200, 1536)] == [200, 512]
    assert [early(4096, rows) for rows in (6144, 4096)] == [256, 0], "narrow tiles of long reads are copied ahead only"
    assert early(1024, 151936) == 256, "more programs than the device holds at once"
    assert early(1024, overlap=False) == 0
