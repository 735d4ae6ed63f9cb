"""Dense layers with what is fused into them on a real GPU, in the types that models run in, against float32."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from covering import MAX_PAIRS, covering
from gpu_cases import TYPES, assert_near, draw
from torch import Tensor

from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.triton.ops import TritonOps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none here")

EPS = 1e-6


SIZES = [(960, 576), (4096, 1024), (1024, 3072), (6144, 4096), (4096, 14336), (40000, 1024)]


@pytest.mark.parametrize(
    ("n", "k", "rows", "dtype", "biased"),
    covering(
        {f"{n}x{k}": (n, k) for n, k in SIZES},
        {str(rows): rows for rows in (1, 2, 8, 16, 17, 64, 100, 256, 4096)},
        TYPES,
        {"plain": False, "biased": True},
        group="dense",
        max_pairs=MAX_PAIRS,
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
    expected = reference.norm_linear(x.float(), norm.float(), EPS, *wide)
    assert_near(ops.norm_linear(x, norm, EPS, weight, bias), expected)
    expected = reference.norm_swiglu(x.float(), norm.float(), EPS, *wide)
    assert_near(ops.norm_swiglu(x, norm, EPS, weight, bias), expected)
    expected = reference.linear_add(x.float(), *wide, residual.float())
    assert_near(ops.linear_add(x, weight, bias, residual), expected)


@pytest.mark.xdist_group("dense-900")
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("rows", [1, 40, 64])
def test_rows_of_channels_that_the_hardware_cannot_copy(
    rows: int, dtype: torch.dtype, ops: TritonOps, rng: torch.Generator
) -> None:
    """Rows of 900 elements are no multiple of 16 bytes."""
    x, weight = draw(rng, rows, 900, dtype=dtype), (draw(rng, 128, 900) / 30).to(dtype)
    norm, residual = draw(rng, 900, dtype=dtype), draw(rng, rows, 128, dtype=dtype)
    reference, wide = ReferenceOps(), (weight.float(), None)
    expected = reference.norm_swiglu(x.float(), norm.float(), EPS, *wide)
    assert_near(ops.norm_swiglu(x, norm, EPS, weight, None), expected)
    expected = reference.linear_add(x.float(), *wide, residual.float())
    assert_near(ops.linear_add(x, weight, None, residual), expected)


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_overlapped_kernels_wait_for_what_they_read(rows: int, ops: TritonOps, rng: torch.Generator) -> None:
    """A chain in which each layer reads the one before it, launched without gaps."""
    if not ops.limits.overlaps:
        pytest.skip("programmatic dependent launch needs compute capability 9.0")
    weights = [(draw(rng, 2048, 2048) / math.sqrt(2048)).to(torch.bfloat16) for _ in range(12)]
    norm = torch.ones(2048, dtype=torch.bfloat16, device=rng.device)
    start = draw(rng, rows, 2048, dtype=torch.bfloat16)

    def chain(between: Callable[[], None]) -> Tensor:
        x = start.clone()
        for weight in weights:
            inner = ops.norm_linear(x, norm, EPS, weight, None)
            between()
            x = ops.linear_add(inner, weight, None, x)
            between()
        return x

    expected = chain(torch.cuda.synchronize)
    for _ in range(20):
        assert torch.equal(chain(lambda: None), expected)
