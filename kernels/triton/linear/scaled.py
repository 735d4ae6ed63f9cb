"""Eight-bit linear layers: quantization of the input, with its norm, then the product.

The first is `quantize.py`, the second `scaled_gemm.py`, or `scaled_gemm_m16.py` for few rows. They have one rule at every
number of rows, so a token's result does not depend on the others. The vendor's products of FP8 add in another order, so
they are not used.
"""

from __future__ import annotations

from torch import Tensor

from draftline.kernels.scaled import ScaledWeight
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.linear.quantize import quantize_rows
from draftline.kernels.triton.linear.scaled_gemm import scaled_gemm
from draftline.kernels.triton.linear.scaled_gemm_m16 import MAX_SCALED_GEMM_M16_ROWS, scaled_gemm_m16
from draftline.kernels.triton.overlap import few_overlap


def scaled_linear(
    x: Tensor,
    weight: ScaledWeight,
    bias: Tensor | None,
    *,
    norm: tuple[Tensor, float] | None = None,
    swiglu: bool = False,
    residual: Tensor | None = None,
    limits: DeviceLimits,
) -> Tensor:
    """``x @ weight.T + bias`` of quantized x: [M, K], [N, K], [N] -> [M, N].

    Args:
        x: [M, K].
        weight: [N, K]; with ``swiglu``, [2 N, K], gates first.
        bias: [weight rows], or None.
        norm: the [K] weights and the epsilon of an RMSNorm of x, or None.
        swiglu: return ``silu(gate) * up``.
        residual: [M, N], added to the result, or None.
        limits: the device's.
    """
    if not x.shape[0]:  # a step that decides no token
        return x.new_empty((0, weight.data.shape[0] // 2 if swiglu else weight.data.shape[0]))
    overlap = few_overlap(x, limits)
    values, scale = quantize_rows(x, weight.data.dtype, grouped=weight.grouped, norm=norm, overlap=overlap)
    few = values.shape[0] * values.shape[1] <= MAX_SCALED_GEMM_M16_ROWS
    return (scaled_gemm_m16 if few else scaled_gemm)(
        values, scale, weight, bias,
        dtype=x.dtype, swiglu=swiglu, residual=residual, overlap=overlap, limits=limits,
    )  # fmt: skip
