"""Dispatch of eight-bit linear layers to kernels, by format, number of rows and the weight's shape.

| rows | FP8, a scale a row | FP8 in blocks | INT8 |
|---|---|---|---|
| 1 | `scaled_gemv.py`; very long rows `scaled_gemm_m16.py` | the same | `scaled_gemm_m16.py` |
| 2 to 16 (INT8: 8) | `scaled_gemm_m16.py` | `scaled_gemm_m16.py` | `scaled_gemm_m16.py` |
| up to 127 | `scaled_gemm.py` | `scaled_gemm.py` | `scaled_gemm.py` |
| more | vendor's | vendor's, where it can | `scaled_gemm.py` |

Measured on an H200; see docs/benchmarks.md. `quantize.py` quantizes the input, with its norm, for all but the
matrix-vector product. All multiply the same factors and keep more bits of the sums than the result has, so their results
differ as little as those of dense layers' kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftline.kernels.scaled import GROUP, ScaledWeight
from draftline.kernels.triton.linear.quantize import halves_of, quantize_rows
from draftline.kernels.triton.linear.scaled_gemm import scaled_gemm
from draftline.kernels.triton.linear.scaled_gemm_m16 import MAX_SCALED_GEMM_M16_ROWS, scaled_gemm_m16
from draftline.kernels.triton.linear.scaled_gemv import scaled_gemv
from draftline.kernels.triton.pointwise.activations import silu_mul

_VENDOR_ROWS = 128
"""From this number on, the vendor's product is as fast despite unfused neighbours, and it is launched faster."""

_LONG_ROW = 16384
"""The longest input of the matrix-vector product, whose programs hold all of it in registers."""


def runs_gemv(rows: int, weight: ScaledWeight) -> bool:
    """Whether `scaled_gemv` takes this number of rows."""
    return rows == 1 and weight.data.dtype != torch.int8 and weight.data.shape[1] <= _LONG_ROW


def runs_vendor(rows: int, weight: ScaledWeight, dtype: torch.dtype, hopper: bool) -> bool:
    """Whether the vendor's product takes this number of rows.

    It needs FP8 with a scale a token and a weight row, or in blocks of 128, and returns bfloat16.
    """
    if not hopper or rows < _VENDOR_ROWS or dtype != torch.bfloat16 or weight.data.dtype == torch.int8:
        return False
    n, k = weight.data.shape
    if weight.grouped:
        return weight.rows == GROUP and n % GROUP == 0 and k % GROUP == 0 and rows % 4 == 0
    return weight.rows == 1 and n % 16 == 0 and k % 16 == 0


def scaled_linear(
    x: Tensor,
    weight: ScaledWeight,
    bias: Tensor | None,
    *,
    norm: tuple[Tensor, float] | None = None,
    swiglu: bool = False,
    residual: Tensor | None = None,
    hopper: bool,
    arrivals: Tensor,
) -> Tensor:
    """``x @ weight.T + bias`` of quantized x: [M, K], [N, K], [N] -> [M, N].

    Args:
        x: [M, K].
        weight: [N, K]; with ``swiglu``, [2 N, K], gates first.
        bias: [weight rows], or None.
        norm: the [K] weights and the epsilon of an RMSNorm of x, or None.
        swiglu: return ``silu(gate) * up``.
        residual: [M, N], added to the result, or None; it may be written over.
        hopper: whether the device has compute capability 9.0 or more.
        arrivals: see `scaled_gemm`.
    """
    rows, dtype = x.shape[0], x.dtype
    few = rows * halves_of(weight.data.dtype) <= MAX_SCALED_GEMM_M16_ROWS
    overlap = hopper and few
    if runs_gemv(rows, weight):
        return scaled_gemv(x, weight, bias, norm=norm, swiglu=swiglu, residual=residual, overlap=overlap)
    values, scale = quantize_rows(x, weight.data.dtype, grouped=weight.grouped, norm=norm, overlap=overlap)
    if few:
        return scaled_gemm_m16(
            values, scale, weight, bias, dtype=dtype, swiglu=swiglu, residual=residual, overlap=overlap
        )
    if not runs_vendor(rows, weight, dtype, hopper):
        return scaled_gemm(
            values, scale, weight, bias, dtype=dtype, arrivals=arrivals, swiglu=swiglu, residual=residual
        )
    product = torch._scaled_mm(values.squeeze(1), weight.data.t(), scale.t(), weight.scale.t(), out_dtype=dtype)
    if bias is not None:
        product += bias
    if swiglu:
        return silu_mul(product)
    return product if residual is None else residual.add_(product)
