"""Dense layers and their fusions, whichever kernels run them, against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.linear import dense
from draftline.kernels.triton.linear.vendor import VendorProducts
from draftline.kernels.triton.ops import TritonOps

EPS = 1e-5
ROWS = [1, 20, 70]


@pytest.fixture
def ops(device: torch.device) -> TritonOps:
    return TritonOps.sized(DeviceLimits.known(80, 132))


def draw(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device).to(dtype)


def near(actual: Tensor, expected: Tensor) -> None:
    assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("k", [192, 90], ids=["aligned", "padded"])
def test_every_number_of_rows(rows: int, biased: bool, k: int, ops: TritonOps, rng: torch.Generator) -> None:
    x, norm, weight = draw(rng, rows, k), draw(rng, k), draw(rng, 48, k) / 18
    bias = draw(rng, 48) if biased else None
    residual = draw(rng, rows, 48)
    reference = ReferenceOps()
    near(ops.linear(x, weight, bias), reference.linear(x, weight, bias))
    near(ops.norm_linear(x, norm, EPS, weight, bias), reference.norm_linear(x, norm, EPS, weight, bias))
    near(ops.norm_swiglu(x, norm, EPS, weight, bias), reference.norm_swiglu(x, norm, EPS, weight, bias))
    expected = reference.linear_add(x, weight, bias, residual.clone())
    near(ops.linear_add(x, weight, bias, residual), expected)


@pytest.mark.usefixtures("dots_in_order")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_row_has_the_same_bits_in_every_batch(dtype: torch.dtype, ops: TritonOps, rng: torch.Generator) -> None:
    """Through every kernel; float16, since the interpreter cannot multiply bfloat16."""
    x, norm, weight = draw(rng, 40, 128, dtype=dtype), draw(rng, 128, dtype=dtype), draw(rng, 32, 128, dtype=dtype) / 10
    bias, residual = draw(rng, 32, dtype=dtype), draw(rng, 40, 32, dtype=dtype)

    def layers(rows: slice) -> list[Tensor]:
        return [
            ops.linear(x[rows], weight, None),
            ops.norm_linear(x[rows], norm, EPS, weight, bias),
            ops.norm_swiglu(x[rows], norm, EPS, weight, bias),
            ops.linear_add(x[rows], weight, bias, residual[rows].clone()),
        ]

    together = layers(slice(0, 40))
    for rows in (slice(3, 4), slice(3, 19), slice(3, 20)):
        for some, all_rows in zip(layers(rows), together, strict=True):
            assert torch.equal(some, all_rows[rows])


def test_the_choice_of_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """By sizes and type alone; the vendor's where it may."""
    chosen: list[str] = []

    def stands_for(name: str) -> object:
        def run(x: Tensor, weight: Tensor, *_: object, **__: object) -> Tensor:
            chosen.append(name)
            return x.new_empty(x.shape[0], weight.shape[0])

        return run

    for name in ("gemm_m16", "gemm_m16_parts", "gemm"):
        monkeypatch.setattr(dense, name, stands_for(name))

    class Vendor(VendorProducts):
        def __init__(self) -> None:
            pass

        def run(self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor | None:
            if x.shape[0] % 64:
                return None
            chosen.append("vendor")
            return x.new_empty(x.shape[0], weight.shape[0])

    def kernels(
        rows: int,
        dtype: torch.dtype = torch.bfloat16,
        *,
        vendor: VendorProducts | None = None,
        n: int = 4096,
        k: int = 4096,
        capability: int = 90,
    ) -> str:
        chosen.clear()
        x, weight = (torch.empty(count, k, dtype=dtype, device="meta") for count in (rows, n))
        dense.DenseKernels(DeviceLimits.known(capability, 132), vendor).linear(x, weight, None)
        return " ".join(chosen)

    assert [kernels(rows) for rows in (1, 16, 17, 64, 1000)] == ["gemm_m16"] * 2 + ["gemm"] * 3
    with_vendor = [kernels(rows, vendor=Vendor()) for rows in (16, 17, 64, 65, 128)]
    assert with_vendor == ["gemm_m16", "gemm", "gemm", "gemm", "vendor"]
    many = [kernels(rows, vendor=Vendor(), k=1024) for rows in (1024, 1088, 2048)]
    assert many == ["vendor", "vendor", "gemm"], (
        "with 2,048 rows, programs take tiles in turn, and none is long without one"
    )
    assert kernels(2048, vendor=Vendor()) == "vendor", "the weight is large"
    assert [kernels(2048, vendor=Vendor(), k=1024, capability=other) for other in (80, 100)] == ["vendor"] * 2
    small = [kernels(rows, vendor=Vendor(), n=2304, k=768) for rows in (128, 1024, 1088)]
    assert small == ["gemm", "gemm", "vendor"], "launches of a small model overlap"
    narrow = [kernels(rows, vendor=Vendor(), n=1024, k=3072) for rows in (1, 48, 49, 1024, 4096)]
    assert narrow == ["gemm_m16_parts"] * 2 + ["gemm"] * 3, "the vendor has no sums in parts"
    assert [kernels(rows, vendor=Vendor(), n=3072, k=1024) for rows in (256, 320)] == ["gemm", "vendor"]
    assert kernels(128, vendor=Vendor(), n=2304, k=768, capability=80) == "vendor", "there, no launches overlap"
    assert kernels(8, torch.float32) == "gemm", "exact float32 products do not run on matrix units"
