"""``DeviceLimits``: what a device has for a kernel's launch, and `fitting`, the largest division of the work that it has room for.

Kernels are tuned on one device (docs/gpus.md). A division that needs more shared memory than another device has is replaced
by the next smaller one. Only what does not change a result becomes smaller: the depth of a pipeline, and how many rows and
columns a program has. The tile of keys and the order of channels belong to the arithmetic and stay.

Registers decide nothing here: every device from compute capability 8.0 on has 65,536 a multiprocessor, 255 a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, Self, TypeVar

import torch
from triton.runtime import driver

logger = logging.getLogger(__name__)

SHARED_BYTES = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""Shared memory of one program by compute capability (CUDA C++ Programming Guide, technical specifications)."""

SLACK = 1024
"""Bytes for barriers and reductions, beside the tiles."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The limits of one device.

    Attributes:
        capability: its compute capability, as 80 or 90.
        num_sms: its multiprocessors.
        shared_bytes: the most shared memory of one program.
    """

    capability: int
    num_sms: int
    shared_bytes: int

    @staticmethod
    def of(device: torch.device) -> DeviceLimits:
        """The limits that the driver reports for a CUDA device."""
        properties = torch.cuda.get_device_properties(device)
        capability = 10 * properties.major + properties.minor
        # The number that Triton compares a kernel with before it launches it.
        index = torch.cuda.current_device() if device.index is None else device.index
        shared_bytes: int = driver.active.utils.get_device_properties(index)["max_shared_mem"]
        return DeviceLimits(capability, properties.multi_processor_count, shared_bytes)

    @staticmethod
    def known(capability: int, num_sms: int) -> DeviceLimits:
        """The limits of a compute capability, for a machine that has no such device."""
        return DeviceLimits(capability, num_sms, SHARED_BYTES[capability])

    @property
    def overlaps(self) -> bool:
        """Whether a launch can start before the one before it has ended (`overlap.py`)."""
        return self.capability >= 90

    def loop_bytes(self, tile_bytes: int, num_stages: int) -> int:
        """The shared memory of a loop that loads tiles ahead and multiplies them.

        The matrix units of 9.0 and 10.0 read shared memory while they multiply. Others read registers, which saves one copy.
        """
        copies = num_stages if 90 <= self.capability < 120 else num_stages - 1
        return max(copies, 1) * tile_bytes + SLACK


UNLIMITED = DeviceLimits(90, 132, 1 << 30)
"""For launches that are known to fit."""


class Division(Protocol):
    """How a kernel's work is divided into programs."""

    def __hash__(self) -> int: ...
    def smaller(self) -> Self | None:
        """The next smaller division with the same results; None if there is none."""
        ...


_DivisionT = TypeVar("_DivisionT", bound=Division)


def fitting(division: _DivisionT, needs: Callable[[_DivisionT], int], limits: DeviceLimits) -> _DivisionT:
    """The division, or the next smaller one that fits.

    Args:
        division: the one that is fastest where there is room.
        needs: the shared memory of a program of a division, in bytes.
        limits: the device's.

    Raises:
        ValueError: not even the smallest fits.
    """
    chosen = division
    while needs(chosen) > limits.shared_bytes:
        smaller = chosen.smaller()
        if smaller is None:
            raise ValueError(
                f"{chosen} needs {needs(chosen)} bytes of shared memory, and the device has {limits.shared_bytes}"
            )
        chosen = smaller
    if chosen is not division:
        _log(division, chosen, needs(division), limits)
    return chosen


@lru_cache(maxsize=1024)
def _log(division: Division, chosen: Division, needed: int, limits: DeviceLimits) -> None:
    """Log a replacement once."""
    logger.info(
        "%s takes %d bytes of shared memory of %d: %s runs instead", division, needed, limits.shared_bytes, chosen
    )
