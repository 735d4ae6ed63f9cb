"""Eight-bit projections on a GPU: several parts' weights and scales merged, and run as stored."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from draftline.kernels.ops import Ops
from draftline.kernels.scaled import GROUP, ScaledWeight, scaled_product
from draftline.quant.eight_bit import NAMES
from draftline.quant.linear import Linear
from draftline.quant.tensor import RawTensor, Scales

_ALIGNED = 16
"""Bytes that a weight row must be a multiple of, for the copies of tiles."""


def mergeable(parts: Sequence[RawTensor]) -> bool:
    """Whether the parts can run as one eight-bit weight: of one format, and with one layout of scales."""
    width = parts[0].shape[1]
    layouts = {None if part.scales is None else _columns(part.scales, width) for part in parts}
    return (
        len({part.format for part in parts}) == 1
        and len(layouts) == 1
        and layouts <= {GROUP, width}
        and width % _ALIGNED == 0
    )


def merged(parts: Sequence[RawTensor]) -> ScaledWeight:
    """The parts' weights one above the other, with their scales in one layout.

    A part need not end at a block of its scales. So scales are repeated: one for each run of as many rows as divide all
    blocks and all parts but the last.
    """
    scales = [part.scales for part in parts if part.scales is not None]
    rows = math.gcd(*(scale.rows for scale in scales), *(part.shape[0] for part in parts[:-1]))
    values = [
        scale.values.repeat_interleave(scale.rows // rows, dim=0)[: -(-part.shape[0] // rows)]
        for scale, part in zip(scales, parts, strict=True)
    ]
    data = torch.cat([part.data for part in parts])
    return ScaledWeight(data, torch.cat(values).contiguous(), rows, _columns(scales[0], data.shape[1]))


def _columns(scales: Scales, width: int) -> int:
    return min(scales.columns, width)


class ScaledLinear(Linear):
    """An eight-bit weight, run as stored by the device's operations. See `Linear`."""

    def __init__(self, weight: ScaledWeight, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias
        self.out_features, self.in_features = weight.data.shape
        self.format = NAMES[weight.data.dtype]
        self.nbytes = weight.nbytes

    @override
    def __call__(self, x: Tensor) -> Tensor:
        # In plain torch, since no operations are given.
        y = scaled_product(x, self._weight)
        return (y if self._bias is None else y + self._bias).to(x.dtype)

    @override
    def linear(self, x: Tensor, ops: Ops) -> Tensor:
        return ops.scaled_linear(x, self._weight, self._bias)

    @override
    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, ops: Ops) -> Tensor:
        return ops.scaled_norm_linear(x, norm, eps, self._weight, self._bias)

    @override
    def norm_swiglu(self, x: Tensor, norm: Tensor, eps: float, ops: Ops) -> Tensor:
        return ops.scaled_norm_swiglu(x, norm, eps, self._weight, self._bias)

    @override
    def linear_add(self, x: Tensor, residual: Tensor, ops: Ops) -> Tensor:
        return ops.scaled_linear_add(x, self._weight, self._bias, residual)
