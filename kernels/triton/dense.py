"""Which kernel runs a dense linear layer, by the number of rows and the shape of the weight, never by the data.

One row is a matrix-vector product with everything around it fused in. A few rows go through `skinny_gemm.py` where that
was measured to be faster, and everything else through the vendor's matrix product with the neighbours as kernels of
their own. The rows of a CUDA graph are those of its bucket, so a sequence's kernels change only with its batch.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from draftline.kernels.triton.gemv import gemv
from draftline.kernels.triton.norm import rms_norm
from draftline.kernels.triton.silu_mul import silu_mul
from draftline.kernels.triton.skinny_gemm import MAX_ROWS, skinny_linear

_WIDE = 2**15
"""Weights with so many rows, output heads above all, have enough to do for the vendor's kernels too."""


def runs_skinny(rows: int, weight: Tensor) -> bool:
    """Whether `skinny_gemm.py` runs so many rows."""
    return 1 < rows <= MAX_ROWS and weight.element_size() == 2 and weight.shape[0] < _WIDE


def dense_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, overlap: bool) -> Tensor:
    """See ``Ops.linear``."""
    if x.shape[0] == 1:
        return gemv(x, weight, bias, overlap=overlap)
    if runs_skinny(x.shape[0], weight):
        return skinny_linear(x, weight, bias, overlap=overlap)
    return linear(x, weight, bias)


def dense_norm_linear(
    x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None, *, overlap: bool
) -> Tensor:
    """See ``Ops.norm_linear``."""
    if x.shape[0] == 1:
        return gemv(x, weight, bias, norm=(norm, eps), overlap=overlap)
    return dense_linear(rms_norm(x, norm, eps, overlap=overlap), weight, bias, overlap=overlap)


def dense_norm_swiglu(
    x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None, *, overlap: bool
) -> Tensor:
    """See ``Ops.norm_swiglu``."""
    if x.shape[0] == 1:
        return gemv(x, weight, bias, norm=(norm, eps), swiglu=True, overlap=overlap)
    normed = rms_norm(x, norm, eps, overlap=overlap)
    if runs_skinny(x.shape[0], weight):
        return skinny_linear(normed, weight, bias, swiglu=True, overlap=overlap)
    return silu_mul(linear(normed, weight, bias), overlap=overlap)


def dense_linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, *, overlap: bool) -> Tensor:
    """See ``Ops.linear_add``."""
    if x.shape[0] == 1:
        return gemv(x, weight, bias, residual=residual, overlap=overlap)
    if runs_skinny(x.shape[0], weight):
        return skinny_linear(x, weight, bias, residual=residual, overlap=overlap)
    if bias is not None:
        residual += bias
    return residual.addmm_(x, weight.t())
