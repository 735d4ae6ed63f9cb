"""GGML's Q8_0: blocks of 32 eight-bit weights, ``w = d q``; 34 bytes, ``d`` as float16 and then 32 signed bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from draftline.quant.tensor import RawTensor

_BLOCK_BYTES = 34


def dequantize_q8_0(raw: RawTensor) -> Tensor:
    """A Q8_0 tensor as float32, of ``raw.shape``."""
    blocks = raw.data.reshape(raw.shape[0], -1, _BLOCK_BYTES)
    d = blocks[..., :2].contiguous().view(torch.float16).float()
    return blocks[..., 2:].view(torch.int8).float().mul_(d).reshape(raw.shape)
