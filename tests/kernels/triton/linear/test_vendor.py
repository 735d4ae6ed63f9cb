"""Verdicts on the vendor's products: who is compared, when, and what is kept. `tests/gpu/test_dense.py` has real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.linear import vendor
from draftline.kernels.triton.linear.vendor import OWN_ROWS, VendorProducts, compared_rows, product
from draftline.kernels.triton.rows import empty_rows

CUDA = torch.device("cuda")
LIMITS = DeviceLimits.known(90, 132)


class Device:
    """A device without a GPU: its name, whether a graph is captured, and its own kernel's comparisons."""

    def __init__(self) -> None:
        self.name = "A GPU"
        self.capturing = False
        self.has_equal_bits: Callable[[Tensor], bool] = lambda x: True
        self.compared: list[tuple[int, ...]] = []

    def own_kernel(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        residual: Tensor | None,
        overlap: bool,
        limits: DeviceLimits,
    ) -> Tensor:
        """The vendor's result, or that with one bit changed."""
        assert overlap, "steps launch this kernel, and a start compiles it before"
        assert limits is LIMITS
        self.compared.append((*x.shape, weight.shape[0]))
        result = product(x, weight, bias, None if residual is None else residual.clone())
        if not self.has_equal_bits(x):
            result.view(torch.int16)[-1, -1] ^= 1
        return result


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    gpu = Device()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: gpu.name)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: gpu.capturing)
    monkeypatch.setattr(vendor, "gemm", gpu.own_kernel)
    return gpu


def factors(rows: int = 128, n: int = 24, k: int = 32, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(rows + n + k)
    return torch.randn(rows, k, generator=rng).to(dtype), torch.randn(n, k, generator=rng).to(dtype)


@pytest.mark.parametrize("equal", [False, True], ids=["other-bits", "equal-bits"])
def test_a_product_is_compared_once(equal: bool, gpu: Device, tmp_path: Path) -> None:
    gpu.has_equal_bits = lambda x: equal
    x, weight = factors()
    products = VendorProducts(CUDA, tmp_path, LIMITS)
    for _ in range(3):
        result = products.run(x, weight, None, None)
        assert (result is not None) == equal, "other bits are never used"
        if result is not None:
            assert torch.equal(result, product(x, weight, None, None))
    later = VendorProducts(CUDA, tmp_path, LIMITS)
    assert (later.run(x, weight, None, None) is not None) == equal
    assert gpu.compared == [(128, 32, 24)], "an earlier process's verdict holds"


def test_sizes_types_and_forms_have_their_own_verdicts(gpu: Device, tmp_path: Path) -> None:
    gpu.has_equal_bits = lambda x: x.shape[0] == 128
    products = VendorProducts(CUDA, tmp_path, LIMITS)
    x, weight = factors()
    bias, residual = torch.ones(24, dtype=x.dtype), torch.ones(128, 24, dtype=x.dtype)
    before = residual.clone()
    assert products.run(x, weight, bias, None) is not None
    added = products.run(x, weight, None, residual)
    assert added is not None
    assert torch.equal(added, product(x, weight, None, before)), "the comparison leaves the residual alone"
    assert products.run(x, weight, None, None) is not None
    assert products.run(*factors(dtype=torch.float16), None, None) is not None
    assert products.run(*factors(rows=192), None, None) is None
    assert len(gpu.compared) == 5


def test_other_sizes_are_padded_where_there_is_room(gpu: Device) -> None:
    products = VendorProducts(CUDA, None, LIMITS)
    x, weight = factors(rows=160)
    with_room = empty_rows(150, 32, dtype=x.dtype, device=x.device)
    with_room.copy_(x[:150])
    result = products.run(with_room, weight, None, None)
    assert result is not None
    assert torch.equal(result, product(x, weight, None, None)[:150])
    larger = torch.ones(200, 24, dtype=x.dtype)
    residual, behind = larger[:150], larger[150:].clone()
    added = products.run(with_room, weight, None, residual)
    assert added is not None
    assert torch.equal(added, product(x, weight, None, torch.ones(160, 24, dtype=x.dtype))[:150])
    assert torch.equal(larger[150:], behind), "what lies behind the residual stream is another's"
    assert gpu.compared == [(160, 32, 24)] * 2


def test_verdicts_depend_on_the_workspace(gpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = factors()
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert VendorProducts(CUDA, tmp_path, LIMITS).run(x, weight, None, None) is not None
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    gpu.has_equal_bits = lambda x: False
    assert VendorProducts(CUDA, tmp_path, LIMITS).run(x, weight, None, None) is None


def test_another_device_s_verdicts_are_not_used(gpu: Device, tmp_path: Path) -> None:
    x, weight = factors()
    assert VendorProducts(CUDA, tmp_path, LIMITS).run(x, weight, None, None) is not None
    gpu.name, gpu.has_equal_bits = "Another", lambda x: False
    assert VendorProducts(CUDA, tmp_path, LIMITS).run(x, weight, None, None) is None
    gpu.name = "A GPU"
    assert VendorProducts(CUDA, tmp_path, LIMITS).run(x, weight, None, None) is not None
    assert len(gpu.compared) == 2


def test_processes_keep_each_other_s_verdicts(gpu: Device, tmp_path: Path) -> None:
    one, other = VendorProducts(CUDA, tmp_path, LIMITS), VendorProducts(CUDA, tmp_path, LIMITS)
    one.run(*factors(n=24), None, None)
    other.run(*factors(n=40), None, None)
    gpu.compared.clear()
    later = VendorProducts(CUDA, tmp_path, LIMITS)
    assert all(later.run(*factors(n=n), None, None) is not None for n in (24, 40))
    assert not gpu.compared


def test_nothing_is_compared_while_a_graph_is_captured(gpu: Device, tmp_path: Path) -> None:
    x, weight = factors()
    products = VendorProducts(CUDA, tmp_path, LIMITS)
    gpu.capturing = True
    assert products.run(x, weight, None, None) is None
    assert not gpu.compared
    gpu.capturing = False
    assert products.run(x, weight, None, None) is not None, "it was not judged by the capture"
    assert not products.settle(), "there was nothing left"
    gpu.capturing = True
    assert products.run(x, weight, None, None) is not None, "a verdict holds in a capture"
    assert [rows for rows, *_ in gpu.compared] == [128]


def test_what_a_capture_left_open_is_settled_once(gpu: Device, tmp_path: Path) -> None:
    x, weight = factors()
    products = VendorProducts(CUDA, tmp_path, LIMITS)
    gpu.capturing = True
    assert products.run(x, weight, None, None) is None
    gpu.capturing = False
    assert products.settle()
    assert not products.settle()
    assert VendorProducts(CUDA, tmp_path, LIMITS).run(x, weight, None, None) is not None, "it was not kept"
    assert [rows for rows, *_ in gpu.compared] == [128]


def test_of_captured_products_other_divisions_are_launched(gpu: Device) -> None:
    products = VendorProducts(CUDA, None, LIMITS)
    gpu.capturing = True
    for rows in (2048, 1088):
        products.run(*factors(rows), None, None)
    products.launch_alternatives()
    assert [rows for rows, *_ in gpu.compared] == [65, 129, 257, 1025], "each division of our own"
    products.launch_alternatives()
    assert len(gpu.compared) == 4, "each once"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[1]"], ids=["empty", "cut-off", "not-text", "other-json"]
)
def test_an_unreadable_file_is_replaced(content: bytes, gpu: Device, tmp_path: Path) -> None:
    x, weight = factors()
    VendorProducts(CUDA, tmp_path, LIMITS).run(x, weight, None, None)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert VendorProducts(CUDA, tmp_path, LIMITS).run(x, weight, None, None) is not None
    assert len(gpu.compared) == 2
    known: dict[str, Any] = json.loads(file.read_text())
    assert [list(verdicts.values()) for verdicts in known.values()] == [[True]]
    assert list(tmp_path.iterdir()) == [file], "no temporary file is left"


@pytest.mark.parametrize("folder", [None, Path("/no/such/folder")], ids=["none", "missing"])
def test_without_a_folder_verdicts_last_as_long_as_the_process(folder: Path | None, gpu: Device) -> None:
    products = VendorProducts(CUDA, folder, LIMITS)
    for _ in range(2):
        assert products.run(*factors(), None, None) is not None
    assert len(gpu.compared) == 1


def test_what_is_never_the_vendor_s(gpu: Device, tmp_path: Path) -> None:
    products = VendorProducts(CUDA, tmp_path, LIMITS)
    x, weight = factors()
    bias, residual = torch.ones(24, dtype=x.dtype), torch.ones(128, 24, dtype=x.dtype)
    assert products.run(*factors(dtype=torch.float32), None, None) is None
    for rows in (64, 65, 2112):
        assert products.run(*factors(rows=rows), None, None) is None, "there is no room for a size that is compared"
    assert products.run(x, weight, bias, residual) is None, "it rounds twice"
    shifted = torch.empty(128 * 32 + 1, dtype=x.dtype)[1:].view(128, 32)
    assert products.run(shifted, weight, None, None) is None, "its alignment would choose another kernel"
    assert not gpu.compared


def test_steps_are_padded_to_sizes_that_are_compared() -> None:
    sizes = {compared_rows(rows) for rows in range(1, 8193)}
    assert len([size for size in sizes if size > OWN_ROWS]) <= 64
    assert all(rows <= compared_rows(rows) <= rows * 1.13 for rows in range(500, 8193))
    assert all(compared_rows(rows) == rows for rows in (1, 17, 64, *sizes))


def test_a_comparison_without_memory_is_tried_again(gpu: Device, tmp_path: Path) -> None:
    def full(x: Tensor) -> bool:
        raise torch.OutOfMemoryError

    gpu.has_equal_bits = full
    products = VendorProducts(CUDA, tmp_path, LIMITS)
    assert products.run(*factors(), None, None) is None
    gpu.has_equal_bits = lambda x: True
    assert products.run(*factors(), None, None) is not None
