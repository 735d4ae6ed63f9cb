"""Asynchronous copies between host and device: uploads of a step's inputs, and readbacks of its results."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor


def upload(values: np.ndarray, device: torch.device) -> Tensor:
    """An array as a tensor on ``device``. A GPU copies it from pinned memory, in the current stream's order."""
    tensor = torch.from_numpy(values)
    if device.type == "cpu":
        return tensor
    # The caching host allocator takes this pinned copy back only after the transfer has run.
    return tensor.pin_memory().to(device, non_blocking=True)


def staging(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialized host tensor, to be written and then sent to ``device`` with `send`."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def send(staged: Tensor, device: torch.device) -> Tensor:
    """A copy of a `staging` tensor on ``device``, in the current stream's order."""
    return staged.to(device, non_blocking=True)  # see `upload` for when its memory is used again


def to_host(tensor: Tensor) -> Tensor:
    """A copy of a GPU's tensor on the host, which an `Arrival` after this tells of."""
    if tensor.device.type != "cuda":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


class EventPool:
    """CUDA events that are free for reuse, for one thread and its stream.

    To create one costs the host almost as much as to record it.
    """

    def __init__(self) -> None:
        """An empty pool."""
        self._unused: list[torch.cuda.Event] = []
        self._stream: torch.cuda.Stream | None = None

    def record(self) -> torch.cuda.Event:
        """Record an event in the stream that is the thread's at the first call."""
        if self._stream is None:
            self._stream = torch.cuda.current_stream()  # to look it up takes as long as to record
        event = self._unused.pop() if self._unused else torch.cuda.Event()
        event.record(self._stream)
        return event

    def give_back(self, events: Iterable[torch.cuda.Event]) -> None:
        """Return events that the device has passed."""
        self._unused += events


class Arrival:
    """A point in a device's stream. Once the device has passed it, all that was sent to the host before has arrived."""

    def __init__(self, device: torch.device, pool: EventPool) -> None:
        """Mark this point of ``device``'s stream, on a GPU by an event of ``pool``."""
        self._pool = pool
        self._event = pool.record() if device.type == "cuda" else None

    def wait(self) -> None:
        """Wait until the device has passed it."""
        if self._event is not None:
            self._event.synchronize()
            self._pool.give_back([self._event])
            self._event = None  # another step's, from now on
