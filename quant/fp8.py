"""Dense weights to FP8 e4m3 with a scale a row, on loading: ``--quantization fp8``.

Which scale is best depends on the row: within a factor of two all leave the format's range as unused, but a row's large
weights fall differently between its eight steps a power of two. Some are tried, from the one that makes the row's
largest weight the format's largest number, and the one of least squared error is kept.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from draftline.kernels.scaled import LARGEST
from draftline.quant.eight_bit import by_rows
from draftline.quant.tensor import RawTensor, Scales

_TRIED = 16
_E4M3 = torch.float8_e4m3fn


def to_fp8(raw: RawTensor, weight: Tensor) -> RawTensor:
    """``weight`` [N, K] (the values of ``raw``, float32) as an F8_E4M3 tensor with a scale a row."""
    data, scale = fp8_rows(weight)
    return replace(raw, format="F8_E4M3", data=data, scales=Scales(scale, 1, weight.shape[1]))


def fp8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] float32 in FP8 e4m3, and its scales [N, 1] float32."""
    return by_rows(_quantized, weight)


def _quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    smallest = weight.abs().amax(1, keepdim=True) / LARGEST[_E4M3]
    smallest = torch.where(smallest > 0, smallest, 1.0)
    best_scale, best_error = smallest, torch.full_like(smallest, torch.inf)
    for step in range(_TRIED):
        scale = smallest * 2 ** (step / _TRIED)
        error = ((weight / scale).to(_E4M3).to(torch.float32) * scale - weight).square_().sum(1, keepdim=True)
        better = error < best_error
        best_scale, best_error = torch.where(better, scale, best_scale), torch.where(better, error, best_error)
    return (weight / best_scale).to(_E4M3), best_scale
