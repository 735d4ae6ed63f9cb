"""Kernels as on a device with 99 KiB of shared memory a program: other divisions, and the same bits.

``--shared-kib 99`` runs any other test of a GPU so.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from covering import MAX_PAIRS, covering
from torch import Tensor

from draftline.kernels.scaled import GROUP, ScaledWeight, quantize
from draftline.kernels.triton.device import SHARED_BYTES, DeviceLimits
from draftline.kernels.triton.ops import TritonOps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none here")

EPS = 1e-6
ROWS = {str(rows): rows for rows in (1, 16, 17, 40, 64, 65, 200, 300)}
SIZES = {f"{n}x{k}": (n, k) for n, k in ((960, 576), (4096, 1024), (1024, 3072), (28672, 4096))}


@pytest.fixture(scope="module")
def devices() -> tuple[TritonOps, TritonOps]:
    """This device, and one with less shared memory."""
    device = torch.device("cuda")
    limits = DeviceLimits.of(device)
    less = dataclasses.replace(limits, shared_bytes=min(limits.shared_bytes, SHARED_BYTES[86]))
    return TritonOps.sized(limits), TritonOps.sized(less)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator("cuda").manual_seed(5)


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device).to(torch.bfloat16)


@pytest.mark.parametrize(("n", "k", "rows"), covering(SIZES, ROWS, group="small-dense", max_pairs=MAX_PAIRS))
def test_dense_layers_have_the_same_bits(
    n: int, k: int, rows: int, devices: tuple[TritonOps, TritonOps], rng: torch.Generator
) -> None:
    x, norm, weight = draw(rng, rows, k), draw(rng, k), draw(rng, n, k) / math.sqrt(k)
    one, other = (ops.linear(x, weight, None) for ops in devices)
    assert torch.equal(one, other)
    one, other = (ops.norm_swiglu(x, norm, EPS, weight, None) for ops in devices)
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("n", "k", "rows", "dtype", "group"),
    covering(
        SIZES,
        ROWS,
        {"fp8": torch.float8_e4m3fn, "int8": torch.int8},
        {"row": 0, "block": GROUP},
        group="small-scaled",
        max_pairs=MAX_PAIRS,
    ),
)
def test_eight_bit_layers_have_the_same_bits(
    n: int,
    k: int,
    rows: int,
    dtype: torch.dtype,
    group: int,
    devices: tuple[TritonOps, TritonOps],
    rng: torch.Generator,
) -> None:
    if dtype != torch.int8 and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("FP8 needs compute capability 8.9")
    x, norm = draw(rng, rows, k), draw(rng, k)
    data, scale = quantize(draw(rng, n, k).float() / math.sqrt(k), dtype, 1)
    if group:
        scale = scale[::GROUP].repeat(1, -(-k // GROUP)).contiguous()
    weight = ScaledWeight(data, scale, group or 1, group or k)
    one, other = (ops.scaled_linear(x, weight, None) for ops in devices)
    assert torch.equal(one, other)
    one, other = (ops.scaled_norm_swiglu(x, norm, EPS, weight, None) for ops in devices)
    assert torch.equal(one, other)
