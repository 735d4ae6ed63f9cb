"""The device's use: in the metrics, in ``draftline top`` and in the request log, with and without NVML."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import FakeEngine
from fake_nvml import GIB, FakeNvml
from rich.console import Console

from draftline.engine.cli.views import top as top_view
from draftline.engine.cli.views.top import Snapshot
from draftline.engine.server.grpc.admin import metric_messages
from draftline.engine.server.telemetry.gpu import GpuMetrics
from draftline.engine.server.telemetry.metrics import Metrics
from draftline.engine.server.telemetry.request_log import _steps
from draftline.engine.stats import DevicePeak, EngineStats, MemoryUse, Utilization, WorkCounts


def values(metrics: GpuMetrics, *uuids: str) -> dict[str, float]:
    return {m.name.removeprefix("draftline_gpu_"): s.value for m in metrics.metrics(uuids) for s in m.samples}


def test_a_gpu_has_five_gauges() -> None:
    read = values(GpuMetrics(FakeNvml), "GPU-a")
    assert read == {
        "utilization_ratio": 0.87,
        "memory_used_bytes": 100 * GIB,
        "memory_total_bytes": 140 * GIB,
        "power_watts": 512.0,
        "temperature_celsius": 61.0,
    }


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    read = values(GpuMetrics(lambda: FakeNvml(power=False)), "GPU-a", "GPU-unknown")
    assert read.keys() == {"utilization_ratio", "memory_used_bytes", "memory_total_bytes", "temperature_celsius"}


@pytest.mark.parametrize("absent", ["package", "driver"])
def test_without_nvml_there_is_no_error(absent: str) -> None:
    tries = []

    def load() -> Any:
        tries.append(absent)
        return importlib.import_module("no_such_package") if absent == "package" else FakeNvml(driver=False)

    metrics = GpuMetrics(load)
    assert values(metrics) == {}  # on a CPU nothing is loaded
    assert not tries
    assert values(metrics, "GPU-a") == values(metrics, "GPU-a") == {}
    assert len(tries) == 1


def collected(work: WorkCounts, *, gpu: bool) -> Snapshot:
    engine = FakeEngine()
    metrics = Metrics()
    memory = MemoryUse(weights=2 * GIB, cache=100 * GIB, activations=GIB, graphs=GIB // 2)
    if gpu:
        engine.info = replace(
            engine.info, peak=DevicePeak(1e15, 4e12), memory=memory, device_uuids=("GPU-a",), device="cuda:0"
        )
        metrics._gpus = GpuMetrics(FakeNvml)
    stats = EngineStats(0, 0, 0, 0, 0, work.steps, 0, 0, 0, 0, work=work)
    engine.stats = lambda: stats  # type: ignore[method-assign]
    metrics.watch(engine)
    return Snapshot.of(metric_messages(metrics.registry.collect()), float(work.steps))


def shown(before: Snapshot, now: Snapshot) -> str:
    console = Console(width=200, record=True)
    console.print(top_view.view("here", before, now))
    return " ".join(console.export_text().replace("│", " ").split())


def test_top_shows_the_use_of_peaks_memory_and_the_gpu() -> None:
    before, after = WorkCounts(10, 1.0, 1e15, 1e12), WorkCounts(110, 3.0, 1.5e15, 7e12)
    text = shown(collected(before, gpu=True), collected(after, gpu=True))
    assert "step 20.0 ms" in text
    assert "arithmetic (MFU) 25.0%" in text  # 0.5e15 operations in 2 s, of 1e15 a second
    assert "memory bandwidth 75.0%" in text
    for line in ("weights 2.00 GiB", "cache 100.00 GiB", "graphs 0.50 GiB", "GPU busy 87.0%", "512 W, 61 °C"):
        assert line in text, line
    text = shown(collected(before, gpu=False), collected(after, gpu=False))
    assert "arithmetic (MFU) 250,000.0 Gflops/s" in text  # a device whose peak is not known
    assert "GPU" not in text


def test_the_request_log_has_the_steps_of_the_request() -> None:
    assert _steps(Utilization()) == {}
    assert _steps(Utilization(4, 0.0123456789, 0.25, 0.5)) == {
        "steps": 4, "step_s": 0.012346, "mfu": 0.25, "bandwidth": 0.5,
    }  # fmt: skip
    assert _steps(Utilization(4, 0.01))["mfu"] == ""  # which the log leaves out
