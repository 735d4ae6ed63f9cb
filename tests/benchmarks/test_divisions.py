"""The search for divisions: what it tries, and that the engine's kernels take it. The times need a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from kernel_timing import divisions
from kernel_timing.divisions import candidates, dividing
from kernel_timing.models import LLAMA_8B, QWEN3, SMOLLM2
from torch import Tensor

from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.linear import dense
from draftline.kernels.triton.linear.gemm_config import GemmConfig, config_for, keeps_busy, max_own_rows
from draftline.kernels.triton.linear.gemm_m16 import GemmM16Config
from draftline.kernels.triton.linear.gemm_m16_parts import GemmM16PartsConfig
from draftline.kernels.triton.linear.parts import part_channels
from draftline.kernels.triton.ops import TritonOps

LIMITS = DeviceLimits.known(90, 132)


def weight_of(n: int, k: int) -> Tensor:
    return torch.empty(n, k, dtype=torch.bfloat16, device="meta")


@pytest.mark.parametrize("rows", [1, 40, 100, 640, 2048, 8000])
@pytest.mark.parametrize("model", [SMOLLM2, QWEN3, LLAMA_8B], ids=lambda model: model.name)
def test_every_candidate_fits_the_device_and_its_product(model: Any, rows: int) -> None:
    for name, (n, k) in model.linears.items():
        part, swiglu = part_channels(weight_of(n, k)), name == "gate_up"
        found = candidates(n, k, rows, LIMITS, swiglu=swiglu)
        assert len(set(found)) == len(found)
        # Of many rows, large weights are the vendor's, unless programs that take tiles in turn are busy.
        busy = keeps_busy(rows, n // 2 if swiglu else n, LIMITS, swiglu=swiglu)
        assert bool(found) == (rows == 1 or part > 0 or busy or rows <= max_own_rows(n * k, swiglu=swiglu))
        # One kernel has few rows, and sums in parts up to 48.
        assert {isinstance(one, GemmConfig) for one in found} <= {rows > (48 if part else 1)}
        for division in found:
            if isinstance(division, GemmConfig):
                assert division.shared_bytes(LIMITS, 2, swiglu=swiglu) <= LIMITS.shared_bytes
                assert part % division.block_k == 0
            elif isinstance(division, GemmM16PartsConfig):
                assert part, "only sums in parts"
                assert division.shared_bytes(part, 2) <= LIMITS.shared_bytes
            else:
                assert not part
                assert division.shared_bytes(LIMITS, k, 2) <= LIMITS.shared_bytes


@pytest.mark.parametrize("rows", [320, 1024, 1792, 2048, 6000])
def test_the_engines_division_is_among_those_of_many_rows(rows: int) -> None:
    x = torch.empty(rows, 1, dtype=torch.bfloat16, device="meta")
    for model in (SMOLLM2, QWEN3):
        for name, (n, k) in model.linears.items():
            weight, swiglu = weight_of(n, k), name == "gate_up"
            if found := candidates(n, k, rows, LIMITS, swiglu=swiglu):
                own = replace(config_for(x, weight, part_channels(weight), swiglu=swiglu), tiles_together=8)
                assert own in found, (model.name, name)


def test_products_are_divided_so_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[str, object]] = []

    def stands_for(name: str) -> object:
        def run(x: Tensor, weight: Tensor, *_: object, config: object = None, **__: object) -> Tensor:
            launched.append((name, config))
            return x.new_empty(x.shape[0], weight.shape[0])

        return run

    for name in ("gemm", "gemm_m16", "gemm_m16_parts"):
        monkeypatch.setattr(dense, name, stands_for(name))
    kernels = dense.DenseKernels(LIMITS, None)

    def run() -> None:
        for n, k in ((1024, 3072), (4096, 1024), (1024, 2048)):
            kernels.linear(torch.empty(5, k, dtype=torch.bfloat16, device="meta"), weight_of(n, k), None)

    narrow, wide = GemmM16PartsConfig(16, 128, early=1), GemmM16Config(64, 128, early=1, num_stages=3)
    with dividing({(1024, 3072): narrow, (4096, 1024): wide}):
        run()
    run()
    names = ["gemm_m16_parts", "gemm_m16", "gemm_m16_parts"]
    assert launched == list(zip(names * 2, [narrow, wide, None, None, None, None], strict=True))
    launched.clear()
    many = GemmConfig(64, 64, 128, num_warps=4, num_stages=3)
    with dividing({(1024, 3072): many}):
        kernels.linear(torch.empty(500, 3072, dtype=torch.bfloat16, device="meta"), weight_of(1024, 3072), None)
    assert launched == [("gemm", many)]


def test_the_search_keeps_what_is_faster_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's time as a sum over products, and a pair of divisions that are fast only together."""
    current: dict[tuple[int, int], Any] = {}

    class Steps:
        tokens = 1
        num_bytes = 1.0

        def run(self, _: object) -> Tensor:
            return torch.zeros(1)

    class Times:
        best: str = ""

        def case(self, _: str, __: str, variant: str, *args: object, check: Any, **options: object) -> float:
            assert check() == 0.0
            o, down = (current.get(shape) for shape in ((1024, 2048), (1024, 3072)))
            time_of = 100.0 - 5 * (o is not None and o.block_n == 32)
            return time_of - 20 * (o is not None and o.block_n == 32 and down is not None and down.starts_next == 2)

        def case_known(self, _: str, __: str, variant: str, microseconds: float, **options: object) -> None:
            self.best = f"{variant} {microseconds}"

    class Dividing:
        def __init__(self, chosen: dict[tuple[int, int], Any]) -> None:
            current.clear()
            current.update(chosen)

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(divisions, "dividing", Dividing)
    times: Any = Times()
    steps: Any = Steps()
    ops: Any = TritonOps.sized(LIMITS)
    divisions.search(times, ops, QWEN3, steps, "a step")
    assert times.best.endswith(" 75.0")
    assert "block_n=32" in times.best
    assert "starts_next=2" in times.best
