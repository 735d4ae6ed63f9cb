"""Which kernel runs a dense linear layer, by the number of rows and the shape of the weight, never by the data.

| rows | wide weights (output heads) | gate and up | the others |
|---|---|---|---|
| 1 | matrix-vector product | the same | the same |
| 2 to 16 | vendor's | `skinny_gemm.py` | `skinny_gemm.py` |
| 17 to 64 | `tall_gemm.py` | `tall_gemm.py` | vendor's; with N or K up to 1,024 `split_gemm.py` |
| more | vendor's | vendor's | vendor's |

Measured on an H200 for the shapes of 0.1 to 8 billion parameters; see docs/benchmarks.md. Norm and activation are part
of the first two rows' launches as far as their files say, and kernels of their own otherwise. The rows of a CUDA graph
are those of its bucket, so a sequence's kernels change only with the size of its batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from draftline.kernels.residual import Residual
from draftline.kernels.triton.linear import gemm_m16 as skinny_gemm
from draftline.kernels.triton.linear import gemm_m64 as tall_gemm
from draftline.kernels.triton.linear.gemm_m16 import skinny_linear, skinny_linear_add
from draftline.kernels.triton.linear.gemm_m64 import tall_linear
from draftline.kernels.triton.linear.gemm_split_k import split_linear
from draftline.kernels.triton.linear.gemv import gemv
from draftline.kernels.triton.pointwise.activations import silu_mul
from draftline.kernels.triton.pointwise.norms import rms_norm

_WIDE = 2**15
_SMALL = 1024


def overlaps(x: Tensor, hopper: bool) -> bool:
    """Whether launches overlap for so many tokens: with more, only the vendor's kernels stand between, which do not."""
    return hopper and x.shape[0] <= tall_gemm.MAX_ROWS


def runs_skinny(rows: int, weight: Tensor) -> bool:
    """Whether `skinny_gemm.py` runs so many rows."""
    # Exact float32 products do not run on matrix units.
    return 1 < rows <= skinny_gemm.MAX_ROWS and weight.element_size() == 2 and weight.shape[0] < _WIDE


def prepares_norm(weight: Tensor) -> bool:
    """Whether `skinny_gemm.py` prepares the norm that follows an addition, rather than leave it to a launch of its own.

    Of wide rows, every program would have more squares to join than the launch costs. Without its last factor, a norm may
    exceed what float16 holds.
    """
    return weight.shape[0] <= _SMALL and weight.dtype == torch.bfloat16


def runs_tall(rows: int, weight: Tensor, hopper: bool) -> bool:
    """Whether `tall_gemm.py` runs so many rows, if the layer is one of those it is for."""
    aligned = weight.shape[1] % 8 == 0
    return hopper and skinny_gemm.MAX_ROWS < rows <= tall_gemm.MAX_ROWS and weight.element_size() == 2 and aligned


def runs_split(rows: int, weight: Tensor, hopper: bool) -> bool:
    """Whether `split_gemm.py` runs so many rows, if the layer is one of those it is for."""
    return runs_tall(rows, weight, hopper) and min(weight.shape) <= _SMALL


def dense_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, hopper: bool, arrivals: Tensor) -> Tensor:
    """See ``Ops.linear``.

    Args:
        x: [T, K].
        weight: [N, K].
        bias: [N], or None.
        hopper: whether the device has compute capability 9.0 or more, here and below.
        arrivals: see `split_gemm.split_linear`, here and below.
    """
    if x.shape[0] == 1:
        return gemv(x, weight, bias, overlap=overlaps(x, hopper))
    if runs_skinny(x.shape[0], weight):
        return skinny_linear(x, weight, bias, overlap=overlaps(x, hopper))
    if weight.shape[0] >= _WIDE and runs_tall(x.shape[0], weight, hopper):
        return tall_linear(x, weight, bias, overlap=overlaps(x, hopper))
    if runs_split(x.shape[0], weight, hopper):
        return split_linear(x, weight, bias, arrivals=arrivals, overlap=overlaps(x, hopper))
    return linear(x, weight, bias)


def dense_norm_linear(
    x: Residual, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None, *, hopper: bool, arrivals: Tensor
) -> Tensor:
    """See ``Ops.norm_linear``."""
    values, prepared = x.values, x.prepared_for(norm)
    overlap = overlaps(values, hopper)
    if values.shape[0] == 1:
        return gemv(values, weight, bias, norm=(norm, eps), overlap=overlap)
    if prepared is not None and runs_skinny(values.shape[0], weight):
        return skinny_linear(prepared.scaled, weight, bias, norm=(prepared.squares, eps), overlap=overlap)
    return dense_linear(rms_norm(values, norm, eps, overlap=overlap), weight, bias, hopper=hopper, arrivals=arrivals)


def dense_norm_swiglu(
    x: Residual, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None, *, hopper: bool
) -> Tensor:
    """See ``Ops.norm_swiglu``."""
    values, prepared = x.values, x.prepared_for(norm)
    rows, overlap = values.shape[0], overlaps(values, hopper)
    if rows == 1:
        return gemv(values, weight, bias, norm=(norm, eps), swiglu=True, overlap=overlap)
    if prepared is not None and runs_skinny(rows, weight):
        return skinny_linear(prepared.scaled, weight, bias, norm=(prepared.squares, eps), swiglu=True, overlap=overlap)
    normed = rms_norm(values, norm, eps, overlap=overlap)
    if runs_skinny(rows, weight):
        return skinny_linear(normed, weight, bias, swiglu=True, overlap=overlap)
    if runs_tall(rows, weight, hopper):
        return tall_linear(normed, weight, bias, swiglu=True, overlap=overlap)
    return silu_mul(linear(normed, weight, bias), overlap=overlap)


def dense_linear_add(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Residual,
    following: Tensor | None,
    *,
    hopper: bool,
    arrivals: Tensor,
) -> Residual:
    """See ``Ops.linear_add``."""
    overlap, before = overlaps(x, hopper), residual.values
    if x.shape[0] == 1:
        return Residual(gemv(x, weight, bias, residual=before, overlap=overlap))
    if runs_skinny(x.shape[0], weight):
        prepared = following if prepares_norm(weight) else None
        return skinny_linear_add(x, weight, bias, before, prepared, overlap=overlap)
    if runs_split(x.shape[0], weight, hopper):
        return Residual(split_linear(x, weight, bias, arrivals=arrivals, residual=before, overlap=overlap))
    if bias is not None:
        before += bias
    return Residual(before.addmm_(x, weight.t()))
