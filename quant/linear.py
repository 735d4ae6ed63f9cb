"""``Linear``: a projection as the model sees it, whatever its weights' format."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import override

from draftline.kernels.ops import Ops


class Linear(Protocol):
    """``y = x @ weight.T + bias``.

    CPU implementations are ``torch.nn.Module`` objects that TorchScript can compile, for `models.scripted`.

    Attributes:
        in_features: width of the input.
        out_features: width of the output.
        format: the weights' format in memory, for reports (``int4``, ``float16``, …).
        nbytes: bytes of the weights.
    """

    in_features: int
    out_features: int
    format: str
    nbytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features]; the dtypes are `quant.compute_dtype`'s."""
        ...

    def linear(self, x: Tensor, ops: Ops) -> Tensor:
        """``self(x)`` by the device's operations: [T, in_features] -> [T, out_features]."""
        ...

    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, ops: Ops) -> Tensor:
        """``linear`` of ``rms_norm(x, norm, eps)``: [T, in_features] -> [T, out_features]."""
        ...

    def norm_swiglu(self, x: Tensor, norm: Tensor, eps: float, ops: Ops) -> Tensor:
        """``silu(gate) * up`` of ``norm_linear``, gates first: [T, in_features] -> [T, out_features / 2]."""
        ...

    def linear_add(self, x: Tensor, residual: Tensor, ops: Ops) -> Tensor:
        """``residual + self(x)``: [T, in_features], [T, out_features] -> [T, out_features], perhaps in ``residual``."""
        ...


class SeparateLinear(torch.nn.Module, Linear):
    """A ``Linear`` whose neighbours are separate operations: the base of formats without fused kernels."""

    @override
    def linear(self, x: Tensor, ops: Ops) -> Tensor:
        y: Tensor = self(x)
        return y

    @override
    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, ops: Ops) -> Tensor:
        y: Tensor = self(ops.rms_norm(x, norm, eps))
        return y

    @override
    def norm_swiglu(self, x: Tensor, norm: Tensor, eps: float, ops: Ops) -> Tensor:
        return ops.silu_mul(self.norm_linear(x, norm, eps, ops))

    @override
    def linear_add(self, x: Tensor, residual: Tensor, ops: Ops) -> Tensor:
        y: Tensor = self(x)
        return residual + y
