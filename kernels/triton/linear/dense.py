"""Dispatch of dense linear layers to kernels, by the number of rows and the weight's shape, never by the data.

| rows | wide weights (output heads) | gate and up | the others |
|---|---|---|---|
| 1 | matrix-vector product | the same | the same |
| 2 to 16 | vendor's | `gemm_m16.py` | `gemm_m16.py` |
| 17 to 64 | `gemm_m64.py` | `gemm_m64.py` | vendor's; with N or K up to 1,024 `gemm_split_k.py` |
| more | vendor's | vendor's | vendor's |

Measured on an H200 for models of 0.1 to 8 billion parameters; see docs/benchmarks.md. Norm and activation are part of
the first two rows' launches where their files say so, and separate kernels otherwise. A CUDA graph has its bucket's number
of rows, so a sequence's kernels change only with the size of its batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.kernels.residual import Residual
from draftline.kernels.triton.linear.gemm_m16 import MAX_GEMM_M16_ROWS, gemm_m16, gemm_m16_add
from draftline.kernels.triton.linear.gemm_m64 import MAX_GEMM_M64_ROWS, gemm_m64
from draftline.kernels.triton.linear.gemm_split_k import gemm_split_k
from draftline.kernels.triton.linear.gemv import gemv
from draftline.kernels.triton.pointwise.activations import silu_mul
from draftline.kernels.triton.pointwise.norms import rms_norm

_WIDE = 2**15
_SMALL = 1024


def overlaps(x: Tensor, hopper: bool) -> bool:
    """Whether launches overlap: with more tokens than these, most neighbours are the vendor's kernels, which do not."""
    return hopper and x.shape[0] <= MAX_GEMM_M64_ROWS


def runs_gemm_m16(rows: int, weight: Tensor) -> bool:
    """Whether `gemm_m16` takes this number of rows."""
    # Exact float32 products do not run on matrix units.
    return 1 < rows <= MAX_GEMM_M16_ROWS and weight.element_size() == 2 and weight.shape[0] < _WIDE


def prepares_norm(weight: Tensor) -> bool:
    """Whether `gemm_m16` prepares the norm that follows an addition, which saves that norm's launch.

    With wide rows, joining the squares in every program costs more than the launch. Without its last factor, a norm may
    exceed float16's range.
    """
    return weight.shape[0] <= _SMALL and weight.dtype == torch.bfloat16


def runs_gemm_m64(rows: int, weight: Tensor, hopper: bool) -> bool:
    """Whether `gemm_m64` takes this number of rows, if the layer is a wide one."""
    aligned = weight.shape[1] % 8 == 0
    return hopper and MAX_GEMM_M16_ROWS < rows <= MAX_GEMM_M64_ROWS and weight.element_size() == 2 and aligned


def runs_gemm_split_k(rows: int, weight: Tensor, hopper: bool) -> bool:
    """Whether `gemm_split_k` takes this number of rows of a narrow layer."""
    return runs_gemm_m64(rows, weight, hopper) and min(weight.shape) <= _SMALL


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, hopper: bool, arrivals: Tensor) -> Tensor:
    """``Ops.linear`` by Triton kernels.

    Args:
        x: [T, K].
        weight: [N, K].
        bias: [N], or None.
        hopper: whether the device has compute capability 9.0 or more, here and below.
        arrivals: see `gemm_split_k`, here and below.
    """
    if x.shape[0] == 1:
        return gemv(x, weight, bias, overlap=overlaps(x, hopper))
    if runs_gemm_m16(x.shape[0], weight):
        return gemm_m16(x, weight, bias, overlap=overlaps(x, hopper))
    if weight.shape[0] >= _WIDE and runs_gemm_m64(x.shape[0], weight, hopper):
        return gemm_m64(x, weight, bias, overlap=overlaps(x, hopper))
    if runs_gemm_split_k(x.shape[0], weight, hopper):
        return gemm_split_k(x, weight, bias, arrivals=arrivals, overlap=overlaps(x, hopper))
    return F.linear(x, weight, bias)


def norm_linear(
    x: Residual, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None, *, hopper: bool, arrivals: Tensor
) -> Tensor:
    """``Ops.norm_linear`` by Triton kernels."""
    values, prepared = x.values, x.prepared_for(norm)
    overlap = overlaps(values, hopper)
    if values.shape[0] == 1:
        return gemv(values, weight, bias, norm=(norm, eps), overlap=overlap)
    if prepared is not None and runs_gemm_m16(values.shape[0], weight):
        return gemm_m16(prepared.scaled, weight, bias, norm=(prepared.squares, eps), overlap=overlap)
    return linear(rms_norm(values, norm, eps, overlap=overlap), weight, bias, hopper=hopper, arrivals=arrivals)


def norm_swiglu(x: Residual, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None, *, hopper: bool) -> Tensor:
    """``Ops.norm_swiglu`` by Triton kernels."""
    values, prepared = x.values, x.prepared_for(norm)
    rows, overlap = values.shape[0], overlaps(values, hopper)
    if rows == 1:
        return gemv(values, weight, bias, norm=(norm, eps), swiglu=True, overlap=overlap)
    if prepared is not None and runs_gemm_m16(rows, weight):
        return gemm_m16(prepared.scaled, weight, bias, norm=(prepared.squares, eps), swiglu=True, overlap=overlap)
    normed = rms_norm(values, norm, eps, overlap=overlap)
    if runs_gemm_m16(rows, weight):
        return gemm_m16(normed, weight, bias, swiglu=True, overlap=overlap)
    if runs_gemm_m64(rows, weight, hopper):
        return gemm_m64(normed, weight, bias, swiglu=True, overlap=overlap)
    return silu_mul(F.linear(normed, weight, bias), overlap=overlap)


def linear_add(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Residual,
    next_norm: Tensor | None,
    *,
    hopper: bool,
    arrivals: Tensor,
) -> Residual:
    """``Ops.linear_add`` by Triton kernels."""
    overlap, before = overlaps(x, hopper), residual.values
    if x.shape[0] == 1:
        return Residual(gemv(x, weight, bias, residual=before, overlap=overlap))
    if runs_gemm_m16(x.shape[0], weight):
        prepared = next_norm if prepares_norm(weight) else None
        return gemm_m16_add(x, weight, bias, before, prepared, overlap=overlap)
    if runs_gemm_split_k(x.shape[0], weight, hopper):
        return Residual(gemm_split_k(x, weight, bias, arrivals=arrivals, residual=before, overlap=overlap))
    if bias is not None:
        before += bias
    return Residual(before.addmm_(x, weight.t()))
