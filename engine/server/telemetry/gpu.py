"""``GpuMetrics``: what the driver says of the engine's GPUs, through nvidia-ml-py (draftline[nvml])."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

logger = logging.getLogger(__name__)

_GAUGES: Mapping[str, tuple[str, Callable[[Any, Any], float]]] = {
    "utilization_ratio": (
        "Share of the time in which a kernel ran.",
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    "memory_used_bytes": (
        "Memory in use, by all processes.",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    ),
    "memory_total_bytes": ("Memory of the GPU.", lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total),
    "power_watts": ("Power that the GPU draws.", lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
    "temperature_celsius": (
        "Temperature of the GPU.",
        lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    ),
}
"""Each gauge by its name: what it is, and how NVML is asked for it by a GPU's handle."""


class GpuMetrics:
    """The metrics of GPUs. Without the package, a driver or a GPU, there are none."""

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        """``load`` imports NVML's binding, when a GPU is first asked for."""
        self._load = load
        self._nvml: Any = None
        self._absent = False

    def metrics(self, uuids: Sequence[str]) -> Iterable[Metric]:
        """A gauge for each value, with a sample for each of these GPUs of which the driver gives it.

        It does not give all of a part of a GPU (MIG).
        """
        nvml = self._library() if uuids else None
        if nvml is None:
            return
        gpus: dict[str, Any] = {}
        for uuid in uuids:
            with suppress(nvml.NVMLError):
                gpus[uuid] = nvml.nvmlDeviceGetHandleByUUID(uuid)
        for name, (about, value) in _GAUGES.items():
            metric = GaugeMetricFamily(f"draftline_gpu_{name}", about, labels=("gpu",))
            for uuid, gpu in gpus.items():
                with suppress(nvml.NVMLError):
                    metric.add_metric([uuid], float(value(nvml, gpu)))
            if metric.samples:
                yield metric

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
