"""INT8 with a scale a row: dense weights converted on loading (``--quantization int8``), packed ones on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from draftline.kernels.scaled import ScaledWeight, quantize
from draftline.quant.eight_bit import by_rows
from draftline.quant.linear import SeparateLinear
from draftline.quant.scaled import mergeable
from draftline.quant.tensor import RawTensor, Scales


def to_int8(raw: RawTensor, weight: Tensor) -> RawTensor:
    """``weight`` [N, K] (the values of ``raw``, float32) as an I8 tensor with a scale a row."""
    data, scale = by_rows(lambda rows: quantize(rows, torch.int8, 1), weight)
    return replace(raw, format="I8", data=data, scales=Scales(scale, 1, weight.shape[1]))


def packable(parts: Sequence[RawTensor]) -> bool:
    """Whether the parts can run as one `Int8Linear`: in INT8, with no row's channels in groups."""
    return mergeable(parts) and all(
        part.format == "I8" and part.scales is not None and part.scales.columns == part.shape[1] for part in parts
    )


class Int8Linear(SeparateLinear):
    """INT8 weights with a scale a row, still packed, on a CPU. Activations must be bfloat16.

    torch's int8 kernel takes the scales in bfloat16: a relative error of at most 2^-9, as rounding the dequantized
    weights to bfloat16 would give. Every row has the same bits at every row count.
    """

    def __init__(self, weight: ScaledWeight, bias: Tensor | None) -> None:
        super().__init__()
        self._weight = weight.data
        by_row = weight.scale.flatten().repeat_interleave(weight.rows)[: weight.data.shape[0]]
        self._scale = by_row.to(torch.bfloat16)
        self._bias = None if bias is None else bias.to(torch.bfloat16)
        self.out_features, self.in_features = weight.data.shape
        self.format = "int8"
        self.nbytes = self._weight.nbytes + self._scale.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features], both bfloat16."""
        y: Tensor = torch.ops.aten._weight_int8pack_mm(x, self._weight, self._scale)
        bias = self._bias
        return y if bias is None else y.add_(bias)
