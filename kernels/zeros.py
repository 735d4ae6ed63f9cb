"""``zeros``: large tensors whose memory is taken as it is used."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 64
"""Bytes: a cache line, to which torch aligns its own tensors."""


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`torch.zeros`, but on a CPU a page takes memory only once it is written.

    `torch.zeros` writes every page. numpy asks the system for pages that are zero already.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = prod(shape) * dtype.itemsize
    memory = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return torch.from_numpy(memory[start : start + size]).view(dtype).view(shape)
