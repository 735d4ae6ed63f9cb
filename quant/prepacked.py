"""Float32 weights on a CPU, packed once for oneDNN.

Plain ``F.linear`` in float32 uses another kernel for one row than for many, so the last bits of a row's result depend on
its batch. oneDNN's packed form gave every row the same bits at every row count on all CPUs tried, and is faster. It is also
the exact form of every quantized format, since nothing is rounded beyond float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftline.quant.linear import SeparateLinear


class PrepackedLinear(SeparateLinear):
    """A float32 weight in oneDNN's own layout, computed in float32; the result is cast to ``dtype``."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self._bias = None if bias is None else bias.to(torch.float32)
        self._dtype = dtype
        self.out_features, self.in_features = weight.shape
        self.format = "float32"
        self.nbytes = weight.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features]."""
        x = x.to(torch.float32)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y.to(self._dtype)
