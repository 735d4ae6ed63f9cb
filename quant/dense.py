"""Dense weights: as they are stored, and run by the device's own matrix product."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from draftline.kernels.ops import Ops
from draftline.quant.linear import Linear
from draftline.quant.tensor import RawTensor


def dequantize_dense(raw: RawTensor) -> Tensor:
    """An F32, F16 or BF16 tensor as float32, of ``raw.shape``."""
    return raw.data.to(torch.float32).reshape(raw.shape)


class DenseLinear(torch.nn.Module, Linear):
    """A weight in the activations' dtype: what GPUs run, through the device's own dense operations.

    On a CPU the last bits of its results depend on the number of rows; `quant.prepacked` runs there instead.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._weight = weight
        self._bias = bias
        self.out_features, self.in_features = weight.shape
        self.format = str(weight.dtype).removeprefix("torch.")
        self.nbytes = weight.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features]."""
        return F.linear(x, self._weight, self._bias)

    @override
    def linear(self, x: Tensor, ops: Ops) -> Tensor:
        return ops.linear(x, self._weight, self._bias)

    @override
    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, ops: Ops) -> Tensor:
        return ops.norm_linear(x, norm, eps, self._weight, self._bias)

    @override
    def norm_swiglu(self, x: Tensor, norm: Tensor, eps: float, ops: Ops) -> Tensor:
        return ops.norm_swiglu(x, norm, eps, self._weight, self._bias)

    @override
    def linear_add(self, x: Tensor, residual: Tensor, ops: Ops) -> Tensor:
        return ops.linear_add(x, self._weight, self._bias, residual)
