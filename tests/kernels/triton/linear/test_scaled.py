"""Eight-bit linear layers, whichever kernels run them: against plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from draftline.kernels.scaled import GROUP, ScaledWeight, quantize, quantize_activations, scaled_product, scaled_up
from draftline.kernels.triton.linear.quantize import quantize_rows
from draftline.kernels.triton.linear.scaled import runs_vendor, scaled_linear
from draftline.kernels.triton.linear.scaled_gemm import ScaledGemmConfig, scaled_gemm
from draftline.kernels.triton.linear.scaled_gemm_m16 import (
    MAX_SCALED_GEMM_M16_ROWS,
    ScaledGemmM16Config,
    scaled_gemm_m16,
)
from draftline.kernels.triton.linear.scaled_gemv import ScaledGemvConfig, scaled_gemv

EPS = 1e-5
FP8, INT8 = torch.float8_e4m3fn, torch.int8
FORMATS = ["fp8", "fp8-block", "fp8-block-48", "int8", "int8-block"]
COMMON_OR_SLOW = [
    "fp8",
    "fp8-block",
    "int8",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("fp8-block-48", "int8-block")),
]
"""All of them; those that no checkpoint has with -m slow."""


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


def make_weight(rng: torch.Generator, n: int, k: int, kind: str) -> ScaledWeight:
    """A weight of one of FORMATS: by row, or by blocks of 128 columns and as many rows or 48."""
    weight = draw(rng, n, k) * (1 + torch.arange(n, device=rng.device)[:, None] % 7) / k**0.5
    dtype = FP8 if kind.startswith("fp8") else INT8
    if kind in ("fp8", "int8"):
        data, scale = quantize(weight, dtype, -1)
        return ScaledWeight(data, scale, 1, k)
    rows = 48 if kind.endswith("48") else GROUP
    padded = torch.nn.functional.pad(weight, (0, -k % GROUP, 0, -n % rows))
    blocks = padded.view(padded.shape[0] // rows, rows, -1, GROUP)
    data, scale = quantize(blocks, dtype, (1, 3))
    return ScaledWeight(data.view(padded.shape)[:n, :k].contiguous(), scale[:, 0, :, 0].contiguous(), rows, GROUP)


@pytest.fixture
def arrivals(device: torch.device) -> Tensor:
    return torch.zeros(64, dtype=torch.int32, device=device)


def near(actual: Tensor, expected: Tensor, bound: float = 1e-5) -> None:
    """Relative, in the Euclidean norm: sums of the same products in another order."""
    error = (actual - expected).norm() / expected.norm()
    assert error < bound, f"relative error {error:.1e}"


def joined(values: Tensor) -> Tensor:
    """What a kernel has quantized, [T, H, K] -> [T, K] float32, whether it is in halves or not."""
    weights = torch.tensor([256.0, 1.0] if values.shape[1] == 2 else [1.0], device=values.device)
    return (values.float() * weights[:, None]).sum(1)


def exact_product(x: Tensor, weight: ScaledWeight) -> Tensor:
    """What a kernel makes of x's quantized values, in float64."""
    values, scale = quantize_rows(x, weight.data.dtype, grouped=weight.grouped)
    x = scaled_up(joined(values), scale.t().contiguous(), 1, weight.columns).double()
    return (x @ weight.dequantized().double().T).float()


@pytest.mark.parametrize("dtype", [FP8, INT8], ids=["fp8", "int8"])
@pytest.mark.parametrize("k", [64, 576])
@pytest.mark.parametrize("grouped", [False, True], ids=["token", "group"])
@pytest.mark.parametrize("has_norm", [False, True], ids=["plain", "norm"])
def test_quantized_rows(has_norm: bool, grouped: bool, k: int, dtype: torch.dtype, rng: torch.Generator) -> None:
    x, weight = 3 * draw(rng, 5, k), draw(rng, k)
    x[3] = 0
    x[1, :GROUP] *= 1000
    values, scale = quantize_rows(x, dtype, grouped=grouped, norm=(weight, EPS) if has_norm else None)
    if has_norm:
        x = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight
    expected, expected_scale = quantize_activations(x, dtype, grouped=grouped)
    torch.testing.assert_close(scale, expected_scale, rtol=1e-6, atol=0)
    # Where a quotient lies between two values, its own rounding decides: a step apart, and rarely.
    step = 1 if dtype == INT8 else 1 / 8 * expected.float().abs() + 2**-9
    difference = (joined(values) - expected.float()).abs()
    assert (difference <= step).all()
    assert (difference > 0).float().mean() < 0.02
    assert not values[3].float().any()
    assert not scale[:, 3].any()


def test_an_integer_of_sixteen_bits_is_two_halves(rng: torch.Generator) -> None:
    x = draw(rng, 1, 256)
    x[0, :7] = torch.tensor([32639.0, -32639.0, 127.5, 126.5, -128.0, -129.0, 0.25])
    values, scale = quantize_rows(x, INT8, grouped=False)
    assert scale.item() == 1
    assert values[0, :, :7].tolist() == [[127, -127, 1, 0, 0, -1, 0], [127, -127, -128, 126, -128, 127, 0]]


def run(x: Tensor, weight: ScaledWeight, bias: Tensor | None, **options: Any) -> Tensor:
    """By the kernel for so many rows."""
    if x.shape[0] == 1 and weight.data.dtype != INT8:
        return scaled_gemv(x, weight, bias, **options)
    values, scale = quantize_rows(x, weight.data.dtype, grouped=weight.grouped)
    if x.shape[0] * values.shape[1] <= MAX_SCALED_GEMM_M16_ROWS:
        return scaled_gemm_m16(values, scale, weight, bias, dtype=torch.float32, **options)
    arrivals = torch.zeros(64, dtype=torch.int32, device=x.device)
    y = scaled_gemm(values, scale, weight, bias, dtype=torch.float32, arrivals=arrivals, **options)
    assert not arrivals.any()
    return y


@pytest.mark.parametrize("kind", COMMON_OR_SLOW)
@pytest.mark.parametrize("rows", [1, 3, 20, 70])
@pytest.mark.parametrize(("n", "k"), [(80, 192), pytest.param(80, 576, marks=pytest.mark.slow)])
def test_every_number_of_rows(rows: int, n: int, k: int, kind: str, rng: torch.Generator) -> None:
    weight, bias, residual = make_weight(rng, n, k, kind), draw(rng, n), draw(rng, rows, n)
    x = draw(rng, rows, k)
    product = exact_product(x, weight)
    near(run(x, weight, bias, residual=residual), product + bias + residual)
    gate, up = (product + bias).chunk(2, dim=-1)
    near(run(x, weight, bias, swiglu=True), silu(gate) * up)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rows", [1, 4, 20])
def test_quantization_and_product(rows: int, kind: str, arrivals: Tensor, rng: torch.Generator) -> None:
    weight, x, norm = make_weight(rng, 64, 192, kind), draw(rng, rows, 192), draw(rng, 192)
    normed = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * norm
    # A value between two is rounded either way: one of some hundred, by a 16th (FP8) or by 2^-16 of the largest.
    bound = 1e-5 if kind.startswith("int8") else 1e-2
    near(scaled_linear(x, weight, None, hopper=False, arrivals=arrivals), scaled_product(x, weight), bound)
    actual = scaled_linear(x, weight, None, norm=(norm, EPS), hopper=False, arrivals=arrivals)
    near(actual, scaled_product(normed, weight), bound)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_has_the_same_factors_in_every_batch(kind: str, arrivals: Tensor, rng: torch.Generator) -> None:
    """Through all three kernels: what differs is the order of additions."""
    weight, x = make_weight(rng, 64, 320, kind), draw(rng, 20, 320)
    together = scaled_linear(x, weight, None, hopper=False, arrivals=arrivals)
    for rows in (slice(3, 4), slice(3, 7)):
        near(scaled_linear(x[rows], weight, None, hopper=False, arrivals=arrivals), together[rows], 1e-6)


@pytest.mark.parametrize("kind", COMMON_OR_SLOW)
def test_configs(kind: str, rng: torch.Generator) -> None:
    weight, x = make_weight(rng, 48, 320, kind), draw(rng, 70, 320)
    product = exact_product(x, weight)
    for config in (ScaledGemmConfig(128, 64, 8, 3), ScaledGemmConfig(64, 32, 4, 2, splits=3)):
        near(run(x, weight, None, config=config), product)
    for chosen in (ScaledGemmM16Config(8, 2, 3), ScaledGemmM16Config(32, 1, 2)):
        near(run(x[:3], weight, None, config=chosen), product[:3])


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind.startswith("fp8")])
@pytest.mark.parametrize(
    "config", [ScaledGemvConfig(4, 1, 1, 2), ScaledGemvConfig(2, 3, 2, 3), ScaledGemvConfig(8, 1, 4, 1)], ids=str
)
def test_gemv_configs(config: ScaledGemvConfig, kind: str, rng: torch.Generator) -> None:
    weight, x = make_weight(rng, 80, 576, kind), draw(rng, 1, 576)
    near(run(x, weight, None, config=config), exact_product(x, weight))


def test_the_choice_of_the_vendor_s() -> None:
    def chosen(rows: int, kind: str, dtype: torch.dtype = torch.bfloat16, *, n: int = 96, hopper: bool = True) -> bool:
        weight = make_weight(torch.Generator().manual_seed(0), n, 256, kind)
        return runs_vendor(rows, weight, dtype, hopper)

    assert [chosen(rows, "fp8") for rows in (127, 128)] == [False, True]
    assert not chosen(500, "int8")
    assert [chosen(rows, "fp8-block", n=256) for rows in (400, 401)] == [True, False]
    assert not chosen(400, "fp8-block"), "whole blocks only"
    assert not chosen(500, "fp8", torch.float16), "it has no such output"
    assert not chosen(500, "fp8", n=90), "rows of 16 only"
    assert not chosen(500, "fp8", hopper=False)


@pytest.mark.parametrize("rows", [0, MAX_SCALED_GEMM_M16_ROWS // 2 + 1])
def test_other_numbers_of_rows_are_refused(rows: int, rng: torch.Generator, device: torch.device) -> None:
    weight = make_weight(rng, 8, 128, "int8")
    x = torch.zeros(rows, 2, 128, dtype=INT8, device=device)
    with pytest.raises(ValueError, match=f"x has {2 * rows} rows; it takes 1 to 16"):
        scaled_gemm_m16(x, torch.zeros(1, rows, device=device), weight, None, dtype=torch.float32)
