"""Quantizing activations to eight bits, with a scale a token or one for each 128 of its channels, fused with an RMSNorm.

For INT8 weights they have sixteen bits, as two values: a token is two rows, the high halves and then the low ones.

One program a token where norm or scale needs its whole row; else one for a few groups, so that few tokens occupy the
device. The scales are ordered by group, then token, as the matrix products read them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.scaled import ACTIVATIONS, GROUP, LARGEST
from draftline.kernels.triton.linear.eight_bit import round_to, round_to_halves
from draftline.kernels.triton.overlap import launch_options, wait_for_previous
from draftline.kernels.triton.rows import empty_rows
from draftline.kernels.triton.sums import square, tree_sum

_GROUPS_A_PROGRAM = 4


@triton.jit
def _quantize_kernel(
    x: tl.tensor,
    norm: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    x_stride: int,
    num_rows: int,
    eps: float,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    LARGEST: tl.constexpr,
    GROUPED: tl.constexpr,
    HALVES: tl.constexpr,
    NORM: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * GROUPS
    col = first * GROUP + tl.arange(0, GROUPS * GROUP)
    mask = col < K
    if NORM:
        # The weight depends neither on the row nor on earlier kernels.
        weight = tl.load(norm + col, mask=mask, other=0.0).to(tl.float32)
    wait_for_previous(OVERLAP)
    value = tl.load(x + row * x_stride + col, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        mean_square = tl.sum(tree_sum(square(value)[None, :]), axis=0) / K
        value = value * tl.rsqrt(mean_square + eps) * weight
    if GROUPED:
        largest = tl.max(tl.reshape(tl.abs(value), (GROUPS, GROUP)), axis=1)
        group = first + tl.arange(0, GROUPS)
        tl.store(scales + group * num_rows + row, largest / LARGEST, mask=group * GROUP < K)
    else:
        largest = tl.max(tl.abs(value), axis=0)
        tl.store(scales + row, largest / LARGEST)
    # Of zeros alone, the scale is zero and any factor will do.
    inverse = LARGEST / tl.maximum(largest, 1.0e-30)
    if GROUPED:
        inverse = tl.reshape(tl.broadcast_to(inverse[:, None], (GROUPS, GROUP)), (GROUPS * GROUP,))
    value = tl.clamp(value * inverse, -LARGEST, LARGEST)
    if HALVES == 2:
        high, low = round_to_halves(value)
        tl.store(out + 2 * row * K + col, high, mask=mask)
        tl.store(out + (2 * row + 1) * K + col, low, mask=mask)
    else:
        tl.store(out + row * K + col, round_to(value, out.dtype.element_ty), mask=mask)


def halves_of(weight_type: torch.dtype) -> int:
    """How many eight-bit values represent one activation for a weight of this type."""
    return ACTIVATIONS[weight_type].itemsize // weight_type.itemsize


def num_warps(channels: int) -> int:
    """Warps a program: up to 32 elements a thread, as in `norms.num_warps`."""
    return min(max(channels // 1024, 1), 8)


def quantize_rows(
    x: Tensor,
    weight_type: torch.dtype,
    *,
    grouped: bool,
    norm: tuple[Tensor, float] | None = None,
    overlap: bool = False,
) -> tuple[Tensor, Tensor]:
    """Quantize activations for a weight of ``weight_type``: values of that type, and scales.

    The values are [T, H, K]: H is 2 for int8, the high and the low half, and else 1. The scales are float32:
    [ceil(K / 128), T] where grouped, else [1, T].

    Args:
        x: [T, K], its rows evenly spaced.
        weight_type: float8_e4m3fn or int8.
        grouped: whether each `GROUP` of a token's channels has a scale, or all have one.
        norm: the [K] weights and the epsilon of an RMSNorm of x, or None.
        overlap: start before the previous kernel has ended.
    """
    rows, k = x.shape
    groups = triton.cdiv(k, GROUP)
    halves = halves_of(weight_type)
    out = empty_rows(rows * halves, k, dtype=weight_type, device=x.device).view(rows, halves, k)
    scales = torch.empty((groups if grouped else 1, rows), dtype=torch.float32, device=x.device)
    norm_weight, eps = norm if norm is not None else (x, 0.0)
    whole_row = norm is not None or not grouped
    a_program = triton.next_power_of_2(groups if whole_row else min(_GROUPS_A_PROGRAM, groups))
    _quantize_kernel[(rows, triton.cdiv(groups, a_program))](
        x,
        norm_weight,
        out,
        scales,
        x.stride(0),
        rows,
        eps,
        K=k,
        GROUP=GROUP,
        GROUPS=a_program,
        LARGEST=LARGEST[ACTIVATIONS[weight_type]],
        GROUPED=grouped,
        HALVES=halves,
        NORM=norm is not None,
        OVERLAP=overlap,
        num_warps=num_warps(a_program * GROUP),
        **launch_options(overlap),
    )
    return out, scales
