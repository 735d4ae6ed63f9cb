from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.testing import assert_close

from draftline.kernels.triton.linear.gemm_split_k import MAX_GEMM_SPLIT_K_ROWS, GemmSplitKConfig, gemm_split_k


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


@pytest.fixture
def arrivals(device: torch.device) -> Tensor:
    return torch.zeros(8, dtype=torch.int32, device=device)


@pytest.mark.parametrize(
    "config", [None, GemmSplitKConfig(32, 64, 1, 4, 3), GemmSplitKConfig(64, 64, 5, 4, 3)], ids=str
)
@pytest.mark.parametrize("rows", [20, 64])
@pytest.mark.parametrize(("n", "k"), [(64, 256), (50, 576), (33, 92)])
def test_gemm_split_k(
    n: int, k: int, rows: int, config: GemmSplitKConfig | None, arrivals: Tensor, rng: torch.Generator
) -> None:
    x, weight, bias, residual = draw(rng, rows, k), draw(rng, n, k), draw(rng, n), draw(rng, rows, n)
    plain, options = linear(x, weight), {"arrivals": arrivals, "config": config}
    for _ in range(2):  # the second time on the first one's leftovers
        assert_close(gemm_split_k(x, weight, None, **options), plain, rtol=1e-4, atol=1e-4)
    assert_close(gemm_split_k(x, weight, bias, **options), plain + bias, rtol=1e-4, atol=1e-4)
    added = gemm_split_k(x, weight, bias, residual=residual, **options)
    assert_close(added, plain + bias + residual, rtol=1e-4, atol=1e-4)
    assert not arrivals.any()


def test_many_tiles_are_not_split(arrivals: Tensor, rng: torch.Generator) -> None:
    x, weight = draw(rng, 20, 256), draw(rng, 300, 256)
    actual = gemm_split_k(x, weight, None, arrivals=arrivals, config=GemmSplitKConfig(32, 64, 4, 4, 3))
    assert_close(actual, linear(x, weight), rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_the_others(arrivals: Tensor, rng: torch.Generator) -> None:
    x, weight = draw(rng, 30, 256), draw(rng, 40, 256)
    some = gemm_split_k(x[12:14], weight, None, arrivals=arrivals)
    assert torch.equal(gemm_split_k(x, weight, None, arrivals=arrivals)[12:14], some)


@pytest.mark.parametrize("rows", [0, MAX_GEMM_SPLIT_K_ROWS + 1])
def test_other_numbers_of_rows_are_refused(rows: int, arrivals: Tensor, device: torch.device) -> None:
    with pytest.raises(ValueError, match=f"x has {rows} rows; it takes 1 to 64"):
        gemm_split_k(torch.zeros(rows, 32, device=device), torch.zeros(8, 32, device=device), None, arrivals=arrivals)
