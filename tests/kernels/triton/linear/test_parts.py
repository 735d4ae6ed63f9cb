"""Sums in parts: few rows, many rows, and which weights have them. In float16, since float32 has none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu
from torch.testing import assert_close

from draftline.kernels.triton.device import UNLIMITED, DeviceLimits
from draftline.kernels.triton.linear.gemm import gemm
from draftline.kernels.triton.linear.gemm_config import GemmConfig, parts_config
from draftline.kernels.triton.linear.gemm_m16_parts import (
    GemmM16PartsConfig,
    gemm_m16_parts,
    gemm_m16_parts_config,
    max_parts_rows,
)
from draftline.kernels.triton.linear.parts import part_channels
from draftline.kernels.triton.pointwise.norms import rms_norm

FEW = [
    GemmM16PartsConfig(16, 128, early=1),
    GemmM16PartsConfig(32, 64, early=0, num_stages=2, ahead=64),
    GemmM16PartsConfig(32, 256, early=1, num_stages=1),
    GemmM16PartsConfig(16, 32, early=3, num_stages=3, starts_next=1),
    GemmM16PartsConfig(16, 128, early=1, tokens=32),
]
"""All, none, or some of a part's channels before the wait, with a last tile and without; and more rows of x a program."""

MANY = [GemmConfig(64, 32, 64, 4, 3), GemmConfig(16, 64, 128, 4, 2), GemmConfig(64, 16, 64, 4, 2, in_turn=2)]
SMALL = DeviceLimits(90, 2, UNLIMITED.shared_bytes)

WIDTHS = [1024, 712, 576, 320]
"""Four whole parts; a shorter last one; a shorter third one, and none after it; two."""


def draw(rng: torch.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(shape, generator=rng, device=rng.device)).half()


def expected(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return linear(x.float(), weight.float(), None if bias is None else bias.float())


@pytest.mark.parametrize("config", [None, *FEW], ids=str)
@pytest.mark.parametrize(("rows", "k"), [(1, 1024), (5, 712), (16, 576), (20, 320), (3, 136)])
def test_few_rows(rows: int, k: int, config: GemmM16PartsConfig | None, rng: torch.Generator) -> None:
    x, weight, bias, residual = draw(rng, rows, k), draw(rng, 40, k, scale=0.05), draw(rng, 40), draw(rng, rows, 40)
    before, product = residual.clone(), expected(x, weight, bias)
    actual = gemm_m16_parts(x, weight, bias, residual=residual, config=config)
    assert_close(actual.float(), residual.float() + product, rtol=2e-3, atol=2e-3)
    assert torch.equal(residual, before)
    gate, up = product.chunk(2, dim=-1)
    actual = gemm_m16_parts(x, weight, bias, swiglu=True, config=config)
    assert_close(actual.float(), silu(gate) * up, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("config", [None, *MANY], ids=str)
@pytest.mark.parametrize("k", WIDTHS)
def test_many_rows(k: int, config: GemmConfig | None, rng: torch.Generator) -> None:
    x, weight, residual = draw(rng, 70, k), draw(rng, 40, k, scale=0.05), draw(rng, 70, 40)
    actual = gemm(x, weight, residual=residual, config=config, limits=SMALL)
    assert_close(actual.float(), residual.float() + expected(x, weight), rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("dots_in_order")
@pytest.mark.parametrize("k", WIDTHS)
def test_a_row_has_the_same_bits_in_every_batch_kernel_and_config(k: int, rng: torch.Generator) -> None:
    x, weight, bias = draw(rng, 20, k), draw(rng, 40, k, scale=0.05), draw(rng, 40)
    residual = draw(rng, 20, 40)
    together = gemm(x, weight, bias, residual=residual, limits=SMALL)
    assert torch.equal(together, residual + gemm(x, weight, bias, limits=SMALL)), "the product is rounded by itself"
    for config in MANY:
        assert torch.equal(gemm(x, weight, bias, residual=residual, config=config, limits=SMALL), together)
    for few in (None, *FEW):
        for rows in (slice(3, 4), slice(3, 8), slice(0, 20)):
            actual = gemm_m16_parts(x[rows], weight, bias, residual=residual[rows], config=few)
            assert torch.equal(actual, together[rows])
    together = gemm(x, weight, bias, swiglu=True, limits=SMALL)
    for few in (None, *FEW):
        assert torch.equal(gemm_m16_parts(x[7:9], weight, bias, swiglu=True, config=few), together[7:9])


@pytest.mark.usefixtures("dots_in_order")
@pytest.mark.parametrize(
    ("k", "counts"),
    [(576, (3, 9)), *(pytest.param(k, (1, 3, 8, 9, 40), marks=pytest.mark.slow) for k in (576, 1024, 712, 320))],
)
def test_a_norm_inside_has_the_bits_of_one_outside(k: int, counts: tuple[int, ...], rng: torch.Generator) -> None:
    x, norm, weight = draw(rng, 40, k), draw(rng, k), draw(rng, 40, k, scale=0.05)
    for rows in counts:
        normed = rms_norm(x[:rows], norm, 1e-5)
        for config in (None, *FEW):
            for swiglu in (False, True):
                inside = gemm_m16_parts(x[:rows], weight, norm=(norm, 1e-5), swiglu=swiglu, config=config)
                assert torch.equal(inside, gemm_m16_parts(normed, weight, swiglu=swiglu, config=config))


@pytest.mark.usefixtures("dots_in_order")
def test_parts_are_chains_of_their_own(rng: torch.Generator) -> None:
    """Numbers whose sum depends on the order: one chain would lose the small ones."""
    x, weight = torch.ones(1, 1024).half(), torch.zeros(16, 1024).half()
    weight[:, 0], weight[:, 256:512:16], weight[:, 768] = 2.0**15, 2.0**-11, -(2.0**15)
    whole = torch.full((1, 16), 16 * 2.0**-11)
    x, weight, whole = (one.to(rng.device) for one in (x, weight, whole))
    # Each small number alone is lost beside the large one; together they are not.
    for result in (gemm_m16_parts(x, weight), gemm(x, weight, limits=SMALL)):
        assert torch.equal(result.float(), whole)


def channels(rows: int, k: int, dtype: torch.dtype = torch.bfloat16) -> int:
    return part_channels(torch.empty(rows, k, dtype=dtype, device="meta"))


def test_which_weights_have_parts() -> None:
    assert [channels(960, 576), channels(576, 576), channels(576, 1536)] == [256, 256, 384]  # SmolLM2 135M
    assert [channels(1024, 2048), channels(1024, 3072)] == [512, 768]  # Qwen3 0.6B
    assert [channels(2048, 2048), channels(896, 4864)] == [512, 1280]
    wide = [channels(3072, 576), channels(4096, 1024), channels(2048, 8192), channels(49152, 576), channels(4096, 4096)]
    assert wide == [0] * 5, "reading such a weight takes longer than its chain"
    assert channels(64, 128) == 0, "one part is one chain"
    assert channels(960, 576, torch.float32) == 0


def test_the_division_depends_on_sizes() -> None:
    for tokens in (1, 8, 10, 16, 24, 40, 64):
        for rows, part in ((960, 256), (576, 384), (1024, 512), (1024, 768), (896, 1280)):
            for attends in (False, True):
                config = gemm_m16_parts_config(tokens, rows, part, attends=attends)
                assert config.early * config.block_k + part % config.block_k <= part
    assert [max_parts_rows(rows * k) for rows, k in ((576, 1536), (1024, 3072))] == [64, 48]
    for rows in (17, 64, 100, 256, 500, 1024, 2000, 8192):
        for n, part in ((576, 384), (1024, 768), (2048, 256)):
            assert part % parts_config(rows, n, part).block_k == 0, "a tile is in one part"
