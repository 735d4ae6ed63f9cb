"""Asynchronous copies between host and device: uploads of a step's inputs, and readbacks of its results."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from draftline.engine.runner.timing import EventPool


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


class Readback:
    """Tensors on their way to the host. `wait` before any of them is read."""

    def __init__(self, device: torch.device, pool: EventPool) -> None:
        """Nothing to read yet. An event of ``pool`` tells of the arrival."""
        self._on_gpu = device.type == "cuda"
        self._pool = pool
        self._arrived: torch.cuda.Event | None = None

    def take(self, tensor: Tensor) -> Tensor:
        """The copy of ``tensor`` on the host, valid after `seal` and `wait`."""
        if not self._on_gpu:
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def seal(self) -> None:
        """Nothing more will be taken."""
        if self._on_gpu:
            self._arrived = self._pool.record()

    def wait(self) -> None:
        """Wait until all that was taken has arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
            self._pool.give_back([self._arrived])
            self._arrived = None  # another step's, from now on
