"""Eight-bit tensors with scales, the operands of a quantized linear layer, and its arithmetic in plain torch.

Weights have scales from their checkpoint, or from `draftline.quant`. Activations are quantized dynamically: one scale a
token, or one for each 128 of its channels where the weight has one for each group of columns. A scale comes from the
largest magnitude, by the same rule at every number of rows. So a token's factors do not depend on its batch; only the
order of additions does.

FP8 weights are multiplied with FP8 activations. Integers have no exponent: in eight bits a few large channels would
take the precision of all others of their token, and groups of channels help too little. So with INT8 weights
activations are integers of sixteen bits, ``256 * high + low`` of two eight-bit ones. Kernels multiply both halves, as
if they were two tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 128
"""Channels of an activation that share a scale."""

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0, torch.int16: 256.0 * 127 + 127}
"""The largest magnitude used of each type. -128 is left out for symmetry; int16 stands for two int8."""

ACTIVATIONS = {torch.float8_e4m3fn: torch.float8_e4m3fn, torch.int8: torch.int16}
"""The type of activations by the type of the weights."""


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """A weight ``data[n, k] * scale[n // rows, k // columns]``.

    Attributes:
        data: [N, K] float8_e4m3fn or int8, contiguous.
        scale: [ceil(N / rows), ceil(K / columns)] float32, contiguous.
        rows: weight rows that share a scale.
        columns: weight columns that share a scale: all K, or `GROUP`.
    """

    data: Tensor
    scale: Tensor
    rows: int
    columns: int

    @property
    def grouped(self) -> bool:
        """Whether each `GROUP` of a row's channels has a scale, in the weight and so in the activations."""
        return self.scale.shape[1] > 1

    @property
    def nbytes(self) -> int:
        """Memory of values and scales."""
        return self.data.nbytes + self.scale.nbytes

    def dequantized(self) -> Tensor:
        """The weight in float32."""
        return scaled_up(self.data, self.scale, self.rows, self.columns)


def scaled_up(data: Tensor, scale: Tensor, rows: int, columns: int) -> Tensor:
    """``data[n, k] * scale[n // rows, k // columns]`` in float32; the last groups may be smaller."""
    n, k = data.shape
    by_row = scale.repeat_interleave(rows, dim=0)[:n]
    return data.to(torch.float32) * by_row.repeat_interleave(columns, dim=1)[:, :k]


def quantize(x: Tensor, dtype: torch.dtype, dim: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """``x`` as values of ``dtype`` and float32 scales, shared along ``dim`` (kept, size 1).

    Rounds to the nearest, ties to even. The scale of zeros alone is zero.
    """
    largest = LARGEST[dtype]
    scale = x.abs().amax(dim, keepdim=True).to(torch.float32) / largest
    values = (x.to(torch.float32) / torch.where(scale > 0, scale, 1.0)).clamp_(-largest, largest)
    return (values if dtype.is_floating_point else values.round_()).to(dtype), scale


def quantize_activations(x: Tensor, weight_type: torch.dtype, *, grouped: bool) -> tuple[Tensor, Tensor]:
    """Quantize activations for a weight of ``weight_type``: values [T, K] of the type in `ACTIVATIONS`, and scales.

    The scales are float32: [ceil(K / 128), T] where grouped, else [1, T].
    """
    rows, k = x.shape
    dtype = ACTIVATIONS[weight_type]
    if not grouped:
        values, scale = quantize(x, dtype, -1)
        return values, scale.t().contiguous()
    groups = F.pad(x, (0, -k % GROUP)).view(rows, -1, GROUP)
    values, scale = quantize(groups, dtype, -1)
    return values.flatten(1)[:, :k].contiguous(), scale.squeeze(-1).t().contiguous()


def scaled_product(x: Tensor, weight: ScaledWeight) -> Tensor:
    """``quantized(x) @ weight.T`` in float32: [T, K] -> [T, N]."""
    values, scale = quantize_activations(x, weight.data.dtype, grouped=weight.grouped)
    rounded = scaled_up(values, scale.t().contiguous(), 1, weight.columns)
    return F.linear(rounded, weight.dequantized())
