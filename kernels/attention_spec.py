"""``AttentionSpec``: what tells one layer's attention from another's, apart from its projections."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How a layer rotates, normalises and scores.

    Attributes:
        rope: [max_positions, 2, D / 2] float32, cosines and sines by position (half-split rotation, as in HF).
        scale: multiplies the scores.
        window: positions that a query sees, itself included (sliding window); None is full attention.
        soft_cap: c turns a scaled score s into ``c * tanh(s / c)`` (Gemma 2, https://arxiv.org/abs/2408.00118); 0
            leaves it.
        norms: the [D] RMSNorm weights of queries and keys (Qwen3), or None.
        eps: the epsilon of these norms.
    """

    rope: Tensor
    scale: float
    window: int | None = None
    soft_cap: float = 0.0
    norms: tuple[Tensor, Tensor] | None = None
    eps: float = 0.0
