"""Eight-bit linear layers, however they are divided: against plain torch, and against each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from draftline.kernels.scaled import GROUP, ScaledWeight, quantize, quantize_activations, scaled_product, scaled_up
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.linear import scaled
from draftline.kernels.triton.linear.quantize import quantize_rows
from draftline.kernels.triton.linear.scaled import scaled_linear
from draftline.kernels.triton.linear.scaled_gemm import ScaledGemmConfig, scaled_gemm
from draftline.kernels.triton.linear.scaled_gemm_m16 import (
    MAX_SCALED_GEMM_M16_ROWS,
    ScaledGemmM16Config,
    can_quantize,
    scaled_gemm_m16,
    scaled_gemm_m16_config,
)

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

CONFIGS = [
    ScaledGemmConfig(128, 64, 8, 3),
    ScaledGemmConfig(64, 32, 4, 2),
    ScaledGemmConfig(16, 64, 4, 6),
]
M16_CONFIGS = [
    ScaledGemmM16Config(64, GROUP, early=0, num_stages=3),
    ScaledGemmM16Config(64, GROUP, early=1, num_stages=1),
    ScaledGemmM16Config(32, GROUP, early=3, num_stages=2, ahead=128),
]
"""All, none, or some of 320 channels before the wait."""


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


def run(
    x: Tensor,
    weight: ScaledWeight,
    bias: Tensor | None = None,
    *,
    swiglu: bool = False,
    residual: Tensor | None = None,
    config: ScaledGemmConfig | ScaledGemmM16Config | None = None,
) -> Tensor:
    """Quantization and product, divided as ``config`` says; by default with the kernel of any number of rows."""
    values, scale = quantize_rows(x, weight.data.dtype, grouped=weight.grouped)
    if isinstance(config, ScaledGemmM16Config):
        return scaled_gemm_m16(
            values, scale, weight, bias, dtype=torch.float32, swiglu=swiglu, residual=residual, config=config
        )  # fmt: skip
    return scaled_gemm(
        values, scale, weight, bias, dtype=torch.float32, swiglu=swiglu, residual=residual, config=config
    )  # fmt: skip


@pytest.mark.parametrize("kind", COMMON_OR_SLOW)
@pytest.mark.parametrize("rows", [1, 3, 20, 70])
@pytest.mark.parametrize(("n", "k"), [(80, 192), pytest.param(80, 576, marks=pytest.mark.slow)])
def test_every_number_of_rows(rows: int, n: int, k: int, kind: str, rng: torch.Generator) -> None:
    weight, bias, residual = make_weight(rng, n, k, kind), draw(rng, n), draw(rng, rows, n)
    x = draw(rng, rows, k)
    before = residual.clone()
    product = exact_product(x, weight)
    near(run(x, weight, bias, residual=residual), product + bias + residual)
    assert torch.equal(residual, before)
    gate, up = (product + bias).chunk(2, dim=-1)
    near(run(x, weight, bias, swiglu=True), silu(gate) * up)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rows", [1, 20])
def test_quantization_and_product(rows: int, kind: str, rng: torch.Generator) -> None:
    weight, x, norm = make_weight(rng, 64, 192, kind), draw(rng, rows, 192), draw(rng, 192)
    normed = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * norm
    # A value between two is rounded either way: one of some hundred, by a 16th (FP8) or by 2^-16 of the largest.
    bound = 1e-5 if kind.startswith("int8") else 1e-2
    near(scaled_linear(x, weight, None, limits=DeviceLimits.known(80, 108)), scaled_product(x, weight), bound)
    near(
        scaled_linear(x, weight, None, norm=(norm, EPS), limits=DeviceLimits.known(80, 108)),
        scaled_product(normed, weight),
        bound,
    )


@pytest.mark.usefixtures("dots_in_order")
@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_has_the_same_bits_in_every_batch(kind: str, rng: torch.Generator) -> None:
    weight, x, norm = make_weight(rng, 64, 192, kind), draw(rng, 23, 192), draw(rng, 192)
    bias, residual = draw(rng, 64), draw(rng, 23, 64)

    def layers(rows: slice) -> list[Tensor]:
        return [
            scaled_linear(
                x[rows], weight, bias, norm=(norm, EPS), residual=residual[rows], limits=DeviceLimits.known(80, 108)
            ),
            scaled_linear(x[rows], weight, bias, swiglu=True, limits=DeviceLimits.known(80, 108)),
        ]

    together = layers(slice(0, 23))
    for rows in (slice(3, 4), slice(3, 7)):
        for some, all_rows in zip(layers(rows), together, strict=True):
            assert torch.equal(some, all_rows[rows])


@pytest.mark.usefixtures("dots_in_order")
@pytest.mark.parametrize("kind", COMMON_OR_SLOW)
def test_every_config_has_the_same_bits(kind: str, rng: torch.Generator) -> None:
    weight, bias, residual = make_weight(rng, 48, 320, kind), draw(rng, 48), draw(rng, 20, 48)
    x = draw(rng, 20, 320)
    product, gated = run(x, weight, bias, residual=residual), run(x[:9], weight, bias, swiglu=True)
    near(product, exact_product(x, weight) + bias + residual)
    for config in CONFIGS:
        assert torch.equal(run(x, weight, bias, residual=residual, config=config), product)
    for config in (*CONFIGS, *M16_CONFIGS):
        assert torch.equal(run(x[3:5], weight, bias, residual=residual[3:5], config=config), product[3:5])
        assert torch.equal(run(x[3:5], weight, bias, swiglu=True, config=config), gated[3:5])


@pytest.mark.parametrize("kind", COMMON_OR_SLOW)
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize(("n", "k"), [(80, 192), (33, 80), pytest.param(80, 576, marks=pytest.mark.slow)])
def test_few_rows(rows: int, n: int, k: int, kind: str, rng: torch.Generator) -> None:
    weight, bias, residual = make_weight(rng, n, k, kind), draw(rng, n), draw(rng, rows, n)
    x = draw(rng, rows, k)
    near(run(x, weight, bias, residual=residual, config=M16_CONFIGS[0]), exact_product(x, weight) + bias + residual)


@pytest.mark.usefixtures("dots_in_order")
@pytest.mark.parametrize("kind", COMMON_OR_SLOW)
@pytest.mark.parametrize("has_norm", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("k", [80, 320, pytest.param(4096, marks=pytest.mark.slow)])
def test_quantization_in_the_launch_has_the_bits_of_one_before_it(
    k: int, has_norm: bool, kind: str, rng: torch.Generator
) -> None:
    weight, x = make_weight(rng, 48, k, kind), draw(rng, 4, k)
    norm = (draw(rng, k), EPS) if has_norm else None
    bias, residual = draw(rng, 48), draw(rng, 4, 48)
    x[2] = 0
    x[1, :GROUP] *= 7
    for rows in (1, 2, 4):
        assert can_quantize(x[:rows], norm)
        values, scale = quantize_rows(x[:rows], weight.data.dtype, grouped=weight.grouped, norm=norm)
        options = {"dtype": torch.float32, "residual": residual[:rows]}
        expected = scaled_gemm_m16(values, scale, weight, bias, **options)
        for config in (None, *M16_CONFIGS):
            actual = scaled_gemm_m16(x[:rows], None, weight, bias, norm=norm, config=config, **options)
            assert torch.equal(actual, expected)
        expected = scaled_gemm_m16(values, scale, weight, bias, dtype=torch.float32, swiglu=True)
        actual = scaled_gemm_m16(x[:rows], None, weight, bias, dtype=torch.float32, swiglu=True, norm=norm)
        assert torch.equal(actual, expected)


def test_what_is_prefetched_fits_the_cache() -> None:
    for rows in (64, 4096, 6144, 16384):
        ahead = scaled_gemm_m16_config(rows, grouped=False).ahead
        assert 512 <= ahead <= 2048
        assert rows * ahead <= 2**23, "8 MiB"


def test_rows_that_no_launch_quantizes(rng: torch.Generator) -> None:
    x = draw(rng, 5, 64)
    assert not can_quantize(x, None), "too many"
    assert not can_quantize(draw(rng, 4, 128)[:, :64], None), "not contiguous"
    assert can_quantize(draw(rng, 1, 70_000), None)
    assert not can_quantize(draw(rng, 4, 70_000), None), "too long"
    with pytest.raises(ValueError, match="5 rows of 64 channels are too many to quantize"):
        scaled_gemm_m16(x, None, make_weight(rng, 48, 64, "fp8"), None, dtype=torch.float32)


@pytest.mark.usefixtures("dots_in_order")
@pytest.mark.parametrize(("kind", "most"), [("fp8", MAX_SCALED_GEMM_M16_ROWS), ("int8", MAX_SCALED_GEMM_M16_ROWS // 2)])
def test_few_rows_have_a_kernel_of_their_own(
    kind: str, most: int, rng: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half is a row. It quantizes few tokens itself."""
    chosen: list[str] = []

    def spied(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def spy(*args: object, **kwargs: object) -> Tensor:
            chosen.append(kernel.__name__)
            return kernel(*args, **kwargs)

        return spy

    for kernel in (quantize_rows, scaled_gemm, scaled_gemm_m16):
        monkeypatch.setattr(scaled, kernel.__name__, spied(kernel))
    weight, x = make_weight(rng, 64, 128, kind), draw(rng, most + 1, 128)
    for rows in (1, 4, 5, most, most + 1):
        scaled_linear(x[:rows], weight, None, limits=DeviceLimits.known(80, 108))
    assert chosen == ["scaled_gemm_m16"] * 2 + ["quantize_rows", "scaled_gemm_m16"] * 2 + [
        "quantize_rows",
        "scaled_gemm",
    ]
