"""The Gumbel noise of `kernels/philox.py` inside a kernel: the same words, whose two logarithms are within 1e-5 of the host's."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from draftline.kernels.triton.sums import INTERPRETED

MIN_TEMPERATURE = tl.constexpr(1e-5)
"""Below it, a row takes its most likely token, without noise."""

_LN_2 = tl.constexpr(math.log(2.0))

_NEAR = tl.constexpr(1 / 16)
"""The distance from 1 below which a logarithm is a short polynomial."""


@triton.jit
def gumbel_noise(counter: tl.tensor, position: tl.tensor, seed: tl.tensor) -> tl.tensor:
    """The noise of blocks of four tokens.

    Args:
        counter: [..., N] int32, token ids divided by 4.
        position: int64, the position that the token will take.
        seed: int64, the request's seed.

    Returns:
        [..., 4 * N] float32: entry ``4 * i + j`` is the noise of token ``4 * counter[i] + j``.
    """
    w0, w1, w2, w3 = _words(counter, position, seed)
    return _gumbel(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))


@triton.jit
def noise_of_tokens(token: tl.tensor, position: tl.tensor, seed: tl.tensor) -> tl.tensor:
    """The noise of these tokens, of any shape, float32; it takes four times as long as `gumbel_noise` of as many."""
    w0, w1, w2, w3 = _words(token // 4, position, seed)
    lane = token % 4
    return _gumbel(tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3)))


@triton.jit
def _words(counter: tl.tensor, position: tl.tensor, seed: tl.tensor) -> tuple[tl.tensor, ...]:
    c0 = counter.to(tl.uint32)
    zero = c0 * 0
    c1 = zero + (position & 0xFFFFFFFF).to(tl.uint32)
    key_low = zero + (seed & 0xFFFFFFFF).to(tl.uint32)
    key_high = zero + ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox_impl(c0, c1, zero, zero, key_low, key_high, 10)
    return w0, w1, w2, w3


@triton.jit
def _gumbel(word: tl.tensor) -> tl.tensor:
    # 23 bits as the fraction of a number in [1, 2): subtracting gives (2 k + 1) / 2**24, exactly, without a conversion.
    unit = ((word >> 9) | 0x3F800000).to(tl.float32, bitcast=True) - (1.0 - 2.0**-24)
    return _minus_ln(_exponential(unit))


@triton.jit
def _exponential(unit: tl.tensor) -> tl.tensor:
    """``-log(unit)``, within some 5e-6 of itself: the most likely winners are near 1, where the fast logarithm is too coarse."""
    rest = 1.0 - unit  # exactly
    # rest + rest**2 / 2 + rest**3 / 3 + ..., whose last factor stands for all that follow.
    factor = tl.fma(rest, tl.fma(rest, tl.fma(rest, tl.full(rest.shape, 0.2083, tl.float32), 0.25), 1.0 / 3.0), 0.5)
    near = tl.fma(rest * rest, factor, rest)
    return tl.where(rest < _NEAR, near, _minus_ln(unit))


@triton.jit
def _minus_ln(value: tl.tensor) -> tl.tensor:
    """The fast logarithm, negated: of an absolute error of 2**-22 between 0.5 and 2, and else of such a relative one (PTX ISA, ``lg2.approx``)."""
    if INTERPRETED:
        return -tl.log(value)
    power = tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [value], dtype=tl.float32, is_pure=True, pack=1
    )
    return power * -_LN_2
