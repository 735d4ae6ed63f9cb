"""``device_peak``: the peak rates that profiles compare with: of known GPUs from their data sheets, else measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from draftline.engine.stats import DevicePeak

_ROUNDS = 5
_SIZE = 1024
_COPIED = 64 << 20


def device_peak(known: DevicePeak | None, device: torch.device) -> tuple[DevicePeak, str]:
    """The peak rates, and where they are from: ``data sheet`` or ``measured``.

    Measured rates are those of a large matrix product in the device's usual type, and of a large copy.
    """
    if known is not None:
        return known, "data sheet"
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    left, right = torch.rand(2, _SIZE, _SIZE, device=device).to(dtype)
    source, target = torch.zeros(2, _COPIED, dtype=torch.uint8, device=device)
    product_s = _best(lambda: torch.mm(left, right), device)
    copy_s = _best(lambda: target.copy_(source), device)
    return DevicePeak(2 * _SIZE**3 / product_s, 2 * _COPIED / copy_s), "measured"


def _best(work: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times)
