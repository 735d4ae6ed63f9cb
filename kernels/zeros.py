"""``zeros``: large tensors whose memory is taken as it is used."""

from __future__ import annotations

import mmap
import sys
from math import prod

import torch
from torch import Tensor


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`torch.zeros`, but on a CPU a page takes memory only once it is written.

    `torch.zeros` writes every page. The system's own pages are zero already. They are small ones: a first write to a
    huge page clears 2 MiB, and a step that first writes to the cache of every layer would take as long as ten steps.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = prod(shape) * dtype.itemsize
    if sys.platform == "linux":
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    else:
        memory = mmap.mmap(-1, max(size, 1))
    return torch.frombuffer(memory, dtype=torch.uint8)[:size].view(dtype).view(shape)
