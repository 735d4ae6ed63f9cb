"""Dense linear layers: the choice of a kernel by the number of rows and the weight's shape, never by the data.

| rows | kernel |
|---|---|
| 1 to 16, and to 32 with a small weight | `gemm_m16.py`, which has the norm of up to 8 of a small model in its launch |
| more, up to 64, and to 256 or 1,024 with a small weight, 2,048 with a small one and SwiGLU | `gemm.py`, whose launches overlap |
| more, up to 1,024 | the vendor's where its bits are equal (`vendor.py`), else `gemm.py` |
| more | `gemm.py`, whose programs take tiles in turn, with SwiGLU or a small weight, where all have one nearly to the end; else as from 65 on |

A narrow weight, whose sums are in parts (`parts.py`), has other kernels: `gemm_m16_parts.py`, with the norm of all rows of a small
model, for 1 to 48 rows, and to 64 if it is small; `gemm.py` for more. The vendor has no such sums.

Each result is a sum over K, or over parts of it. The matrix units take 16 channels after the other and add into one float32
accumulator, from the first channel to the last. That order is the same for every tile, number of rows, instruction and operand order, so
kernels may differ in all of these, and a row has the same bits whatever the other rows are. The choice is one of speed
alone; it is measured on an H200 and an H100 for models of 0.1 to 8 billion parameters (docs/tuning.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.linear.gemm import gemm
from draftline.kernels.triton.linear.gemm_config import OWN_ROWS, keeps_busy, max_own_rows
from draftline.kernels.triton.linear.gemm_m16 import can_normalize, gemm_m16, max_gemm_m16_rows
from draftline.kernels.triton.linear.gemm_m16_parts import gemm_m16_parts, max_parts_rows
from draftline.kernels.triton.linear.parts import part_channels
from draftline.kernels.triton.linear.vendor import VendorProducts
from draftline.kernels.triton.overlap import overlaps
from draftline.kernels.triton.pointwise.activations import silu_mul
from draftline.kernels.triton.pointwise.norms import rms_norm

_TUNED = 90
"""The compute capability of the devices on which products of many tokens were compared with the vendor's."""

_MOST_IN_TURN = 8 << 20
"""Elements of a weight up to which programs that take tiles in turn are no slower than the vendor's; with SwiGLU, which the vendor does
not have, always."""

_ALIGNMENT = 16
"""Bytes: rows of both factors are multiples of this, for the hardware's copies."""

Norm = tuple[Tensor, float]
"""The weights and the epsilon of an RMSNorm."""


def _is_aligned(x: Tensor) -> bool:
    """Whether the hardware can copy the rows of x [T, K]."""
    return x.shape[1] * x.element_size() % _ALIGNMENT == 0


def _are_few(x: Tensor, weight: Tensor, *, overlap: bool) -> bool:
    """Whether the product of x [T, K] is one of few rows."""
    elements = weight.numel()
    most = max_parts_rows(elements) if part_channels(weight) else max_gemm_m16_rows(elements, overlap=overlap)
    return x.shape[0] <= most and x.element_size() == 2 and _is_aligned(x)


def _padded(x: Tensor) -> Tensor:
    """``x`` with zeros for channels, up to the alignment: they add nothing. No model in use needs it."""
    return F.pad(x, (0, -x.shape[1] % (_ALIGNMENT // x.element_size())))


@dataclass(frozen=True, slots=True)
class DenseKernels:
    """Dense layers on one device.

    Attributes:
        limits: the device's.
        vendor: the vendor's products, or None to use none.
    """

    limits: DeviceLimits
    vendor: VendorProducts | None

    def settle(self) -> bool:
        """Compare the products that have come up with the vendor's, as ``Ops.settle`` says."""
        return self.vendor is not None and self.vendor.settle()

    def launch_alternatives(self) -> None:
        """Launch our own kernels in place of the captured products, as ``Ops.launch_alternatives`` says."""
        if self.vendor is not None:
            self.vendor.launch_alternatives()

    def linear(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        norm: Norm | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """``x @ weight.T + bias + residual`` of x, or of its norm: [T, K], [N, K], [N], [T, N] -> [T, N].

        It may be written over ``residual``.
        """
        if not x.shape[0]:  # a step that decides no token
            return x.new_empty((0, weight.shape[0]))
        overlap = overlaps(x, self.limits)
        if _are_few(x, weight, overlap=overlap):
            return self._few_rows(x, norm, weight, bias, residual=residual, overlap=overlap)
        if norm is not None:
            x = rms_norm(x, *norm, overlap=overlap)
        if not _is_aligned(x):
            return self.linear(_padded(x), _padded(weight), bias, residual=residual)
        if self.vendor is not None and not self._is_own(x.shape[0], weight, swiglu=False):
            result = self.vendor.run(x, weight, bias, residual)
            if result is not None:
                return result
        return gemm(x, weight, bias, residual=residual, overlap=overlap, limits=self.limits)

    def _is_own(self, tokens: int, weight: Tensor, *, swiglu: bool) -> bool:
        """Whether our own kernel is the only one, or the faster one: by launches that overlap, or by tiles in turn."""
        if part_channels(weight):  # the vendor has no such sums
            return True
        if tokens <= OWN_ROWS or (self.limits.overlaps and tokens <= max_own_rows(weight.numel(), swiglu=swiglu)):
            return True
        if self.limits.capability != _TUNED or not (swiglu or weight.numel() <= _MOST_IN_TURN):
            return False
        columns = weight.shape[0] // 2 if swiglu else weight.shape[0]
        return keeps_busy(tokens, columns, self.limits, swiglu=swiglu)

    def norm_swiglu(self, x: Tensor, norm: Norm, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``silu(gate) * up`` of `linear` of the norm, the weight being [2 N, K], gates first: [T, K] -> [T, N]."""
        overlap = overlaps(x, self.limits)
        if _are_few(x, weight, overlap=overlap):
            return self._few_rows(x, norm, weight, bias, swiglu=True, overlap=overlap)
        if not self._is_own(x.shape[0], weight, swiglu=True) or x.element_size() != 2 or not _is_aligned(x):
            return silu_mul(self.linear(x, weight, bias, norm=norm), overlap=overlap)
        x = rms_norm(x, *norm, overlap=overlap)
        return gemm(x, weight, bias, swiglu=True, overlap=overlap, limits=self.limits)

    def _few_rows(
        self,
        x: Tensor,
        norm: Norm | None,
        weight: Tensor,
        bias: Tensor | None,
        *,
        swiglu: bool = False,
        residual: Tensor | None = None,
        overlap: bool,
    ) -> Tensor:
        """A kernel of few rows for x, or for its norm, which is part of the launch where it may be."""
        if norm is not None and not can_normalize(x, weight):
            x, norm = rms_norm(x, *norm, overlap=overlap), None
        kernel = gemm_m16_parts if part_channels(weight) else gemm_m16
        return kernel(x, weight, bias, swiglu=swiglu, residual=residual, norm=norm, overlap=overlap, limits=self.limits)
