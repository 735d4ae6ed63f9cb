"""``GpuMetrics``: what the driver says of the engine's GPUs, through nvidia-ml-py (draftline[nvml])."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU at one moment. A value is None where the driver does not give it, as for a part of a GPU (MIG).

    Attributes:
        uuid: the GPU's unique id.
        utilization: the share of the last moments in which any kernel ran.
        memory_used: bytes in use, by all processes.
        memory_total: all its bytes.
        power: watts.
        temperature: degrees Celsius.
    """

    uuid: str
    utilization: float | None
    memory_used: float | None
    memory_total: float | None
    power: float | None
    temperature: float | None


class _Gauge(NamedTuple):
    name: str
    about: str
    value: Callable[[GpuState], float | None]


_GAUGES = (
    _Gauge("utilization_ratio", "Share of the time in which a kernel ran.", lambda gpu: gpu.utilization),
    _Gauge("memory_used_bytes", "Memory in use, by all processes.", lambda gpu: gpu.memory_used),
    _Gauge("memory_total_bytes", "Memory of the GPU.", lambda gpu: gpu.memory_total),
    _Gauge("power_watts", "Power that the GPU draws.", lambda gpu: gpu.power),
    _Gauge("temperature_celsius", "Temperature of the GPU.", lambda gpu: gpu.temperature),
)


class GpuMonitor:
    """Reads GPUs through NVML. Without the package, a driver or a GPU, it reads none."""

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        """``load`` imports NVML's binding, when a GPU is first asked for."""
        self._load = load
        self._nvml: Any = None
        self._absent = False

    def read(self, uuids: Sequence[str]) -> Iterator[GpuState]:
        """The state of these GPUs, of those that the driver knows."""
        nvml = self._library() if uuids else None
        if nvml is None:
            return
        for uuid in uuids:
            with suppress(nvml.NVMLError):
                yield _state(nvml, uuid, nvml.nvmlDeviceGetHandleByUUID(uuid))

    def _library(self) -> Any:
        if self._nvml is None and not self._absent:
            try:
                nvml = self._load()
                nvml.nvmlInit()
                self._nvml = nvml
            except Exception as error:  # noqa: BLE001  no package, or no driver: NVML's errors are the package's own
                self._absent = True
                logger.debug("the GPU's utilization, power and temperature are not known: %s", error)
        return self._nvml


class GpuMetrics:
    """The metrics of GPUs."""

    def __init__(self, monitor: GpuMonitor | None = None) -> None:
        """``monitor`` reads them."""
        self._monitor = monitor or GpuMonitor()

    def metrics(self, uuids: Sequence[str]) -> Iterable[Metric]:
        """A gauge for each value, with a sample for each of these GPUs that gives it."""
        states = list(self._monitor.read(uuids))
        for gauge in _GAUGES:
            metric = GaugeMetricFamily(f"draftline_gpu_{gauge.name}", gauge.about, labels=("gpu",))
            for state in states:
                value = gauge.value(state)
                if value is not None:
                    metric.add_metric([state.uuid], value)
            if metric.samples:
                yield metric


def _state(nvml: Any, uuid: str, handle: Any) -> GpuState:
    def asked(read: Callable[[], float]) -> float | None:
        try:
            return float(read())
        except nvml.NVMLError:
            return None

    return GpuState(
        uuid,
        utilization=asked(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
        memory_used=asked(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
        memory_total=asked(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
        power=asked(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        temperature=asked(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    )
