from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.triton.pointwise.norms import add_rms_norm, joined_norms, rms_norm, rms_norm_add

EPS = 1e-5


def expected_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return (wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()).float()


@pytest.mark.parametrize("shape", [(1, 576), (5, 64), (2, 3, 80)], ids=str)
def test_rms_norm(shape: tuple[int, ...], device: torch.device, rng: torch.Generator) -> None:
    x = torch.randn(shape, generator=rng, device=device)
    weight = torch.randn(shape[-1], generator=rng, device=device)
    assert_close(rms_norm(x, weight, EPS), expected_norm(x, weight))


def test_rms_norm_reads_rows_of_a_wider_tensor(device: torch.device, rng: torch.Generator) -> None:
    wide = torch.randn(4, 100, generator=rng, device=device)
    weight = torch.randn(70, generator=rng, device=device)
    assert_close(rms_norm(wide[:, :70], weight, EPS), expected_norm(wide[:, :70], weight))


@pytest.mark.parametrize("shape", [(1, 576), (3, 100)], ids=str)
def test_add_rms_norm_returns_the_norm_and_the_sum(
    shape: tuple[int, int], device: torch.device, rng: torch.Generator
) -> None:
    x, residual = torch.randn(2, *shape, generator=rng, device=device)
    weight = torch.randn(shape[-1], generator=rng, device=device)
    before = residual.clone()
    normed, total = add_rms_norm(x, residual, weight, EPS)
    assert_close(total, x + residual)
    assert_close(normed, expected_norm(x + residual, weight))
    assert torch.equal(residual, before)


def test_add_rms_norm_normalises_the_sum_as_it_is_stored(device: torch.device, rng: torch.Generator) -> None:
    x, residual = torch.randn(2, 3, 256, generator=rng, device=device).to(torch.float16)
    weight = torch.ones(256, device=device, dtype=torch.float16)
    normed, total = add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, x + residual)
    assert_close(normed, expected_norm(total, weight).half(), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 576), (3, 100)], ids=str)
def test_rms_norm_add(shape: tuple[int, int], device: torch.device, rng: torch.Generator) -> None:
    x, residual = torch.randn(2, *shape, generator=rng, device=device)
    weight = torch.randn(shape[-1], generator=rng, device=device)
    expected = residual + expected_norm(x, weight)
    assert_close(rms_norm_add(x, weight, EPS, residual), expected)


def test_rms_norm_add_of_half_types_takes_float32_weights(device: torch.device, rng: torch.Generator) -> None:
    x, residual = torch.randn(2, 3, 256, generator=rng, device=device).to(torch.float16)
    weight = 1 + torch.randn(256, generator=rng, device=device) / 1000
    total = rms_norm_add(x, weight, EPS, residual)
    assert total.dtype == torch.float16
    assert torch.equal(total, residual + rms_norm(x, weight, EPS))


@pytest.mark.parametrize("shape", [(1, 576), (3, 100)], ids=str)
def test_joined_norms_are_bits_of_the_two_apart(
    shape: tuple[int, int], device: torch.device, rng: torch.Generator
) -> None:
    table = torch.randn(9, shape[1], generator=rng, device=device)
    hidden = torch.randn(shape, generator=rng, device=device)
    table_norm, hidden_norm = torch.randn(2, shape[1], generator=rng, device=device)
    token_ids = torch.randint(0, 9, shape[:1], generator=rng, device=device)
    apart = (rms_norm(table[token_ids], table_norm, EPS), rms_norm(hidden, hidden_norm, EPS))
    joined, normed = joined_norms(table, token_ids, table_norm, hidden, hidden_norm, EPS)
    assert torch.equal(joined, torch.cat(apart, dim=1))
    assert torch.equal(normed, apart[1])
    expected = ReferenceOps().joined_norms(table, token_ids, table_norm, hidden, hidden_norm, EPS)
    assert_close((joined, normed), expected)
