"""Rows that kernels move are those that torch's indexing moves."""

from __future__ import annotations

import pytest
import torch

from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.triton.inputs.move_rows import copy_rows, put_rows, take_rows

REFERENCE = ReferenceOps()


@pytest.mark.parametrize("width", [1, 40, 576, 1500])
def test_rows_are_taken_and_put_as_by_indexing(width: int, device: torch.device, rng: torch.Generator) -> None:
    table = torch.randn(9, width, generator=rng, device=device)
    index = torch.tensor([3, 0, -1, 8, 3, 5], device=device)
    taken = take_rows(table, index)
    assert torch.equal(taken, REFERENCE.take_rows(table, index))
    assert torch.equal(taken[2], table[8])
    index = torch.tensor([3, 0, -1, 5, 2, 7], device=device)
    by_kernel, by_indexing = table.clone(), table.clone()
    put_rows(taken, index, by_kernel)
    REFERENCE.put_rows(taken, index, by_indexing)
    assert torch.equal(by_kernel, by_indexing)
    assert torch.equal(by_kernel[8], taken[2])
    assert torch.equal(by_kernel[4], table[4]), "no index names it"


@pytest.mark.parametrize("width", [40, 1500])
def test_rows_are_copied_into_a_part_of_wider_rows(width: int, device: torch.device, rng: torch.Generator) -> None:
    rows = torch.randn(5, width, generator=rng, device=device)
    wider = torch.zeros(5, 3, width, device=device)
    copy_rows(rows, wider[:, 1])
    assert torch.equal(wider[:, 1], rows)
    assert not wider[:, ::2].any()


def test_no_rows_are_moved(device: torch.device) -> None:
    table, none = torch.ones(4, 8, device=device), torch.empty(0, dtype=torch.int64, device=device)
    assert take_rows(table, none).shape == (0, 8)
    put_rows(table[:0], none, table)
    copy_rows(table[:0], table[:0])
    assert torch.equal(table, torch.ones_like(table))
