"""Llama 3's rotary scaling, recovered from the per-frequency factors of a GGUF file.

llama.cpp's converter evaluates the scaling and stores each rotary frequency's divisor (``rope_freqs.weight``). The
engine computes frequencies from `Llama3Scaling`. So the scaling is recovered from the factors, and accepted only if it
reproduces them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from draftline.models.config import Llama3Scaling

_TOLERANCE = 1e-4
"""Relative tolerance of a factor: they are float32, from float32 frequencies."""


def scaling_of_factors(factors: Sequence[float], rope_theta: float) -> Llama3Scaling | None:
    """The scaling that makes ``factors``, for heads of ``2 * len(factors)`` and base ``rope_theta``.

    Returns:
        None where every factor is 1.

    Raises:
        ValueError: Llama 3's scaling cannot make these factors.
    """
    if all(_close(factor, 1.0) for factor in factors):
        return None
    for scaling in _candidates(factors, rope_theta):
        if all(map(_close, llama3_factors(scaling, rope_theta, len(factors)), factors)):
            return scaling
    raise ValueError("the factors are not those of Llama 3's rotary scaling, and no other is supported")


def llama3_factors(scaling: Llama3Scaling, rope_theta: float, count: int) -> list[float]:
    """The divisors of ``count`` rotary frequencies (https://arxiv.org/abs/2407.21783, as in HF).

    Frequencies that turn more than ``high_freq_factor`` times in the original context stay, those that turn less than
    ``low_freq_factor`` times are divided by ``factor``, and between them the reciprocal goes linearly with the turns.
    """
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    factors = []
    for turns in _turns(scaling.original_max_positions, rope_theta, count):
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1.0 / ((1.0 - kept) / scaling.factor + kept))
    return factors


def _turns(positions: float, rope_theta: float, count: int) -> list[float]:
    """The number of turns of each frequency within this many positions."""
    return [positions * rope_theta ** (-index / count) / (2 * math.pi) for index in range(count)]


def _candidates(factors: Sequence[float], rope_theta: float) -> Iterator[Llama3Scaling]:
    factor = max(factors)
    if not 1.0 < factor < math.inf:
        return
    yield Llama3Scaling(factor, 1.0, 4.0, 8192)  # all of Meta's models
    # Only the ratios of low, high and original positions show in the factors, so low is taken to be 1. Between the
    # bends the kept share is (positions * x - low) / (high - low), with x the turns a position: a line through any two.
    per_position = _turns(1.0, rope_theta, len(factors))
    kept = [(1.0 / value - 1.0 / factor) / (1.0 - 1.0 / factor) if value > 0 else 0.0 for value in factors]
    bent = [(x, share) for x, share in zip(per_position, kept, strict=True) if 1e-3 < share < 1.0 - 1e-3]
    if len(bent) < 2:
        return
    (x0, share0), (x1, share1) = bent[0], bent[-1]
    slope = (share1 - share0) / (x1 - x0)
    offset = slope * x0 - share0
    if offset > 0:
        yield Llama3Scaling(factor, 1.0, round(1.0 + 1.0 / offset, 3), round(slope / offset))


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_TOLERANCE)
