"""``FakeNvml``: NVML of a machine with one GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class _NVMLError(Exception):
    pass


class FakeNvml:
    """The calls of pynvml that are used, for one GPU. Some GPUs do not tell their power."""

    NVMLError = _NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *, driver: bool = True, power: bool = True) -> None:
        self._driver, self._power = driver, power

    def nvmlInit(self) -> None:
        if not self._driver:
            raise _NVMLError("no driver")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-a":
            raise _NVMLError("not found")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=87)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=100 * GIB, total=140 * GIB)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        if not self._power:
            raise _NVMLError("not supported")
        return 512_000

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 61
