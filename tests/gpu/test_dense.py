"""Dense layers with what is fused into them on a real GPU, in the types that models run in, against float32."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from covering import covering
from torch import Tensor

from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.residual import Residual
from draftline.kernels.triton.ops import TritonOps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none here")

EPS = 1e-6
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture(scope="module")
def ops() -> TritonOps:
    return TritonOps.for_device(torch.device("cuda"))


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator("cuda").manual_seed(7)


def draw(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device).to(dtype)


def assert_near(actual: Tensor, expected: Tensor, bound: float = 8e-3) -> None:
    """The relative error in the Euclidean norm; NaN never passes."""
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    assert error < bound, f"relative error {error:.2e}, bound {bound:.0e}"


SIZES = [(960, 576), (4096, 1024), (1024, 3072), (6144, 4096), (4096, 14336), (40000, 1024)]


@pytest.mark.parametrize(
    ("n", "k", "rows", "dtype", "biased"),
    covering(
        {f"{n}x{k}": (n, k) for n, k in SIZES},
        {str(rows): rows for rows in (1, 2, 8, 16, 17, 64, 100)},
        TYPES,
        {"plain": False, "biased": True},
        group="dense",
    ),
)
def test_dense_layers(
    n: int, k: int, rows: int, biased: bool, dtype: torch.dtype, ops: TritonOps, rng: torch.Generator
) -> None:
    x, norm = draw(rng, rows, k, dtype=dtype), draw(rng, k, dtype=dtype)
    weight = (draw(rng, n, k) / math.sqrt(k)).to(dtype)
    bias = draw(rng, n, dtype=dtype) if biased else None
    residual = draw(rng, rows, n, dtype=dtype)
    wide = (weight.float(), None if bias is None else bias.float())
    reference = ReferenceOps()
    assert_near(ops.linear(x, weight, bias), reference.linear(x.float(), *wide))
    stream, wide_stream = Residual(x), Residual(x.float())
    expected = reference.norm_linear(wide_stream, norm.float(), EPS, *wide)
    assert_near(ops.norm_linear(stream, norm, EPS, weight, bias), expected)
    expected = reference.norm_swiglu(wide_stream, norm.float(), EPS, *wide)
    assert_near(ops.norm_swiglu(stream, norm, EPS, weight, bias), expected)
    added = reference.linear_add(x.float(), *wide, Residual(residual.float()), None)
    assert_near(ops.linear_add(x, weight, bias, Residual(residual), None).values, added.values)


@pytest.mark.parametrize(
    ("hidden", "inner", "rows", "dtype"),
    covering(
        {
            f"{hidden}x{inner}": (hidden, inner)
            for hidden, inner in ((576, 1536), (1024, 3072), (2048, 8192), (4096, 4096))
        },
        {str(rows): rows for rows in (1, 2, 5, 16, 40)},
        TYPES,
        group="norm-after",
    ),
)
def test_a_norm_after_an_addition(
    hidden: int, inner: int, rows: int, dtype: torch.dtype, ops: TritonOps, rng: torch.Generator
) -> None:
    x, residual = draw(rng, rows, inner, dtype=dtype), 30 * draw(rng, rows, hidden, dtype=dtype)
    norm = draw(rng, hidden, dtype=dtype)
    down = (draw(rng, hidden, inner) / math.sqrt(inner)).to(dtype)
    up = (draw(rng, 2 * inner, hidden) / math.sqrt(hidden)).to(dtype)
    reference = ReferenceOps()
    added = reference.linear_add(x.float(), down.float(), None, Residual(residual.float()), None)
    stream = ops.linear_add(x, down, None, Residual(residual), norm)
    assert (stream.prepared is not None) == (1 < rows <= 16 and hidden <= 1024 and dtype == torch.bfloat16)
    assert_near(stream.values, added.values)
    expected = reference.norm_linear(added, norm.float(), EPS, up.float(), None)
    assert_near(ops.norm_linear(stream, norm, EPS, up, None), expected)
    expected = reference.norm_swiglu(added, norm.float(), EPS, up.float(), None)
    assert_near(ops.norm_swiglu(stream, norm, EPS, up, None), expected)


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_overlapped_kernels_wait_for_what_they_read(rows: int, ops: TritonOps, rng: torch.Generator) -> None:
    """A chain in which each layer reads the one before it, launched without gaps."""
    if not ops.hopper:
        pytest.skip("programmatic dependent launch needs compute capability 9.0")
    weights = [(draw(rng, 2048, 2048) / math.sqrt(2048)).to(torch.bfloat16) for _ in range(12)]
    norm = torch.ones(2048, dtype=torch.bfloat16, device=rng.device)
    start = draw(rng, rows, 2048, dtype=torch.bfloat16)

    def chain(between: Callable[[], None]) -> Tensor:
        x = Residual(start)
        for weight in weights:
            inner = ops.norm_linear(x, norm, EPS, weight, None)
            between()
            x = ops.linear_add(inner, weight, None, x, norm)
            between()
        return x.values

    expected = chain(torch.cuda.synchronize)
    for _ in range(20):
        assert torch.equal(chain(lambda: None), expected)
