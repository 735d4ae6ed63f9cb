"""Reading a row's logits as they are sampled: masked, and divided by the temperature."""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.sums import INTERPRETED


@triton.jit
def mask_of(masks: tl.tensor, row: tl.tensor, stride: int, MASKED: tl.constexpr) -> tl.tensor:
    """A pointer to the mask whose index is at ``row``."""
    if MASKED:
        masks += tl.load(row).to(tl.int64) * stride
    return masks


@triton.jit
def read_scaled(
    logits: tl.tensor,
    mask: tl.tensor,
    ids: tl.tensor,
    valid: tl.tensor,
    divisor: tl.tensor,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """The logits of ``ids`` divided by the temperature; -inf where NaN, not allowed or not valid."""
    value = tl.load(logits + ids, mask=valid, other=float("-inf")).to(tl.float32)
    value = tl.where(value == value, value, float("-inf"))
    if MASKED:
        word = tl.load(mask + ids // 32, mask=valid, other=0)
        value = tl.where(((word >> (ids % 32)) & 1) != 0, value, float("-inf"))
    return _quotient(value, divisor)


@triton.jit
def _quotient(value: tl.tensor, divisor: tl.tensor) -> tl.tensor:
    """``value / divisor``, correctly rounded as the reference's, so that ties are the same; the divisor is a positive scalar.

    A product with the rounded reciprocal, corrected by its remainder twice, of which the second time rounds correctly (Markstein,
    "Computation of elementary functions on the IBM RISC System/6000 processor", 1990). Each remainder is exact, unless the value
    is below 1e-30, where it matters to no score. `div_rn` would begin with a reciprocal for each value.
    """
    if INTERPRETED:  # whose fma rounds twice
        return tl.div_rn(value, tl.zeros_like(value) + divisor)
    divisor = tl.zeros_like(value) + divisor
    reciprocal = tl.div_rn(tl.full(value.shape, 1.0, tl.float32), divisor)
    product = value * reciprocal
    quotient = tl.fma(tl.fma(product, -divisor, value), reciprocal, product)
    quotient = tl.fma(tl.fma(quotient, -divisor, value), reciprocal, quotient)
    # An infinity has no remainder.
    return tl.where(tl.abs(product) == float("inf"), product, quotient)


@triton.jit
def read_one(
    logits: tl.tensor, mask: tl.tensor, token: tl.tensor, divisor: tl.tensor, MASKED: tl.constexpr
) -> tl.tensor:
    """The scaled logit of one token."""
    ids = token + tl.zeros([1], tl.int32)
    return tl.max(read_scaled(logits, mask, ids, ids >= 0, divisor, MASKED), axis=0)
