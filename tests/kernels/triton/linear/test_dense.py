"""Dense layers and their fusions, whichever kernels run them, against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.residual import Residual
from draftline.kernels.triton.linear.dense import runs_gemm_m16, runs_gemm_m64, runs_gemm_split_k
from draftline.kernels.triton.ops import TritonOps

EPS = 1e-5
ROWS = [1, 4, 20]


@pytest.fixture
def ops(device: torch.device) -> TritonOps:
    return TritonOps.sized(132, hopper=False, device=device)


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


def near(actual: Tensor, expected: Tensor) -> None:
    assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_every_number_of_rows(rows: int, biased: bool, ops: TritonOps, rng: torch.Generator) -> None:
    x, norm, weight = draw(rng, rows, 320), draw(rng, 320), draw(rng, 96, 320) / 18
    bias = draw(rng, 96) if biased else None
    residual = draw(rng, rows, 96)
    reference = ReferenceOps()
    near(ops.linear(x, weight, bias), reference.linear(x, weight, bias))
    stream = Residual(x)
    near(ops.norm_linear(stream, norm, EPS, weight, bias), reference.norm_linear(stream, norm, EPS, weight, bias))
    near(ops.norm_swiglu(stream, norm, EPS, weight, bias), reference.norm_swiglu(stream, norm, EPS, weight, bias))
    expected = reference.linear_add(x, weight, bias, Residual(residual), None)
    near(ops.linear_add(x, weight, bias, Residual(residual), None).values, expected.values)


def test_the_choice_of_kernel() -> None:
    def weight(n: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(n, 64, dtype=dtype, device="meta")

    chosen = [runs_gemm_m16(rows, weight(512, torch.bfloat16)) for rows in (1, 2, 16, 17)]
    assert chosen == [False, True, True, False]
    assert not runs_gemm_m16(8, weight(512, torch.float32)), "exact float32 products do not run on matrix units"
    m64 = [runs_gemm_m64(rows, weight(512, torch.bfloat16), hopper=True) for rows in (16, 17, 64, 65)]
    assert m64 == [False, True, True, False]
    assert not runs_gemm_m64(32, weight(512, torch.bfloat16), hopper=False)
    split_k = [runs_gemm_split_k(rows, weight(512, torch.bfloat16), hopper=True) for rows in (16, 17, 64, 65)]
    assert split_k == [False, True, True, False]
    assert not runs_gemm_split_k(40, torch.empty(2048, 2048, dtype=torch.bfloat16, device="meta"), hopper=True)
    assert not runs_gemm_m16(8, weight(128_000, torch.bfloat16)), "an output head"
