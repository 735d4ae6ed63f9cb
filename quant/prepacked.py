"""Float32 weights on a CPU, packed once for oneDNN.

Plain ``F.linear`` in float32 uses another kernel for one row than for many, so the last bits of a row's result depend
on its batch. oneDNN's packed form gave every row the same bits at every row count on all CPUs tried, and is faster, but
for one case: it sums more than 1,024 columns in parts, and a single row in other parts than several. So a single row of
so many columns runs as two. The packed form is also the exact form of every quantized format, since nothing is rounded
beyond float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftline.quant.linear import SeparateLinear

_COLUMNS_OF_ONE_SUM = 1024
"""From more columns on, a single row runs as two."""


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
        self._doubles_one_row = self.in_features > _COLUMNS_OF_ONE_SUM

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features]."""
        rows = x.shape[0]
        x = x.to(torch.float32)
        if rows == 1 and self._doubles_one_row:
            x = x.expand(2, -1).contiguous()
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y[:rows].to(self._dtype)
