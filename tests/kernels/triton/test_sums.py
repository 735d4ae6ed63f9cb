"""Sums as binary trees: one order of additions in every kernel."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.sums import square, tree_sum


@triton.jit
def _tree_sum_kernel(x: tl.tensor, out: tl.tensor, M: tl.constexpr, N: tl.constexpr) -> None:
    row = tl.arange(0, M)
    tl.store(out + row, tree_sum(tl.load(x + row[:, None] * N + tl.arange(0, N)[None, :])))


@triton.jit
def _sum_of_squares_kernel(x: tl.tensor, out: tl.tensor, N: tl.constexpr) -> None:
    value = tl.load(x + tl.arange(0, N))
    tl.store(out + tl.arange(0, 1), tree_sum(square(value)[None, :]))


def kernel_sum(x: Tensor) -> Tensor:
    """[M, N] -> [M]."""
    out = torch.empty(x.shape[0], device=x.device)
    _tree_sum_kernel[(1,)](x.contiguous(), out, M=x.shape[0], N=x.shape[1])
    return out


def by_halves(x: Tensor) -> Tensor:
    """The first half plus the second, and so on: [..., N] -> [...]."""
    while x.shape[-1] > 1:
        first, second = x.chunk(2, dim=-1)
        x = first + second
    return x[..., 0]


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    """Numbers of such different sizes that another order would give other bits."""
    return torch.randn(shape, generator=rng, device=rng.device).pow(5)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (4, 2), (2, 64), (1, 4096), (8, 128), (1, 2**17)])
def test_a_sum_is_the_tree(rows: int, width: int, rng: torch.Generator) -> None:
    x = draw(rng, rows, width)
    assert torch.equal(kernel_sum(x), by_halves(x))


def test_another_order_has_other_bits(rng: torch.Generator) -> None:
    """Or the tests here would show nothing."""
    x = draw(rng, 16, 4096)
    assert not torch.equal(kernel_sum(x), by_halves(x.view(16, -1, 2).mT.reshape(16, -1)))


@pytest.mark.parametrize("parts", [2, 8, 64])
def test_columns_add_up_to_the_same_bits(parts: int, rng: torch.Generator) -> None:
    """A row in the shape of a matrix: its columns first, then the row of their sums (`linear/quantize.py`)."""
    x = draw(rng, 1, 1024)
    of_columns = kernel_sum(x.view(parts, -1).T)
    assert torch.equal(kernel_sum(of_columns[None]), kernel_sum(x))


def test_rows_do_not_depend_on_each_other(rng: torch.Generator) -> None:
    x = draw(rng, 8, 256)
    together = kernel_sum(x)
    assert all(torch.equal(kernel_sum(x[row : row + 1]), together[row : row + 1]) for row in range(8))


def test_a_square_is_rounded_before_it_is_added(rng: torch.Generator) -> None:
    x = draw(rng, 512)
    out = torch.empty(1, device=x.device)
    _sum_of_squares_kernel[(1,)](x, out, N=512)
    assert torch.equal(out[0], by_halves(x * x))
