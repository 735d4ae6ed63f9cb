"""GGML's other block formats, read through the gguf package's own decoders. They run dequantized."""

from __future__ import annotations

import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from draftline.quant.tensor import RawTensor

FORMATS = (
    *("Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
)
"""The names that `dequantize_ggml` reads."""


def dequantize_ggml(raw: RawTensor) -> Tensor:
    """A tensor of one of ``FORMATS`` as float32, of ``raw.shape``."""
    weights = dequantize(raw.data.contiguous().numpy(), GGMLQuantizationType[raw.format])
    return torch.from_numpy(weights).to(torch.float32).reshape(raw.shape)
