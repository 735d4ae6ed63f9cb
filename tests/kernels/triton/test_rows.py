"""Activations have room for whole tiles of rows, and what lies there changes no result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from draftline.kernels.scaled import ScaledWeight, quantize
from draftline.kernels.triton.linear.gemm import gemm
from draftline.kernels.triton.linear.quantize import quantize_rows
from draftline.kernels.triton.linear.scaled_gemm import scaled_gemm
from draftline.kernels.triton.pointwise.activations import gelu, silu_mul
from draftline.kernels.triton.pointwise.norms import add_rms_norm, joined_norms, layer_norm, rms_norm
from draftline.kernels.triton.rows import empty_rows, rows_with_room

CPU = torch.device("cpu")


@pytest.mark.parametrize(("rows", "room"), [(0, 0), (1, 1), (16, 16), (17, 64), (64, 64), (65, 128), (300, 384)])
def test_memory_of_whole_tiles(rows: int, room: int) -> None:
    made = empty_rows(rows, 3, 5, dtype=torch.float32, device=CPU)
    assert made.shape == (rows, 3, 5)
    assert made.is_contiguous()
    assert rows_with_room(made) == room
    assert rows_with_room(made.view(rows, 15)) == room


def test_a_tensor_without_room_has_its_rows_only() -> None:
    assert rows_with_room(torch.zeros(20, 8)) == 20
    whole = torch.zeros(100, 8)
    assert rows_with_room(whole[:20]) == 64
    assert rows_with_room(whole[36:56]) == 64
    assert rows_with_room(whole[37:57]) == 20


def spoilt(x: Tensor) -> Tensor:
    """A copy of ``x`` with room that is full of NaN."""
    copy = empty_rows(*x.shape, dtype=x.dtype, device=x.device)
    room = torch.as_strided(copy, (rows_with_room(copy), *x.shape[1:]), copy.stride())
    room.fill_(torch.nan)
    copy.copy_(x)
    assert len(room) > len(x)
    assert not room[-1].isfinite().any()
    return copy


@pytest.mark.parametrize("swiglu", [False, True], ids=["plain", "swiglu"])
@pytest.mark.parametrize("rows", [20, 100])
def test_what_lies_behind_the_rows_changes_no_product(rows: int, swiglu: bool, rng: torch.Generator) -> None:
    x, weight = torch.randn(rows, 192, generator=rng), torch.randn(64, 192, generator=rng)
    assert torch.equal(gemm(spoilt(x), weight, swiglu=swiglu), gemm(x, weight, swiglu=swiglu))


@pytest.mark.parametrize("grouped", [False, True], ids=["row", "group"])
def test_what_lies_behind_the_rows_changes_no_scaled_product(grouped: bool, rng: torch.Generator) -> None:
    x, weight = torch.randn(20, 256, generator=rng), torch.randn(64, 256, generator=rng)
    data, scale = (
        quantize(weight.view(-1, 64, 2, 128), torch.float8_e4m3fn, (1, 3))
        if grouped
        else quantize(weight, torch.float8_e4m3fn, -1)
    )
    scaled = (
        ScaledWeight(data.view(64, 256), scale[:, 0, :, 0].contiguous(), 64, 128)
        if grouped
        else ScaledWeight(data, scale, 1, 256)
    )
    values, factors = quantize_rows(x, torch.float8_e4m3fn, grouped=grouped)
    tight = values.clone()
    assert rows_with_room(tight) < rows_with_room(values)
    room = torch.as_strided(values, (64, 256), (256, 1))
    room[20:] = torch.nan
    expected = scaled_gemm(tight, factors, scaled, None, dtype=torch.float32)
    assert torch.equal(scaled_gemm(values, factors, scaled, None, dtype=torch.float32), expected)


WEIGHT, TABLE = torch.ones(32), torch.ones(9, 32)
RESULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda x: rms_norm(x, WEIGHT, 1e-5),
    "added norm": lambda x: add_rms_norm(x, x, WEIGHT, 1e-5)[0],
    "layer norm": lambda x: layer_norm(x, WEIGHT, WEIGHT, 1e-5),
    "joined norms": lambda x: joined_norms(TABLE, torch.zeros(len(x), dtype=torch.int64), WEIGHT, x, WEIGHT, 1e-5)[0],
    "activation": silu_mul,
    "gelu": gelu,
    "product": lambda x: gemm(x, TABLE),
    "INT8": lambda x: quantize_rows(x, torch.int8, grouped=False)[0].view(-1, 32),
}


@pytest.mark.parametrize("name", RESULTS)
def test_what_products_read_has_room(name: str) -> None:
    result = RESULTS[name](torch.ones(20, 32))
    assert rows_with_room(result) == 64
    assert result.is_contiguous()
