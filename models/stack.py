"""``Stack``: a decoder's layers as one callable, and the one that runs them operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.ops import Ops
from draftline.models.layers import DecoderLayer


class Stack(Protocol):
    """All layers, with their weights."""

    def __call__(self, residual: Tensor, batch: Batch, cache: KVCache) -> Tensor:
        """[T, hidden] -> [T, hidden], before the final norm; writes the batch's keys and values to the cache."""
        ...


class OpsStack:
    """The layers over any `Ops`.

    Args:
        layers: the layers.
        rope: [max_positions, 2, D / 2] float32, see ``Ops.rope_write_kv``.
        eps: RMSNorm's epsilon.
        ops: the device's operations.
    """

    def __init__(self, layers: Sequence[DecoderLayer], rope: Tensor, eps: float, ops: Ops) -> None:
        self._layers, self._rope, self._eps, self._ops = layers, rope, eps, ops

    def __call__(self, residual: Tensor, batch: Batch, cache: KVCache) -> Tensor:
        """See ``Stack``."""
        ops, eps, rope = self._ops, self._eps, self._rope
        update: Tensor | None = None
        for layer, keys, values in zip(self._layers, cache.keys, cache.values, strict=True):
            if update is None:
                x = ops.rms_norm(residual, layer.attention_norm, eps)
            else:
                x, residual = ops.add_rms_norm(update, residual, layer.attention_norm, eps)
            x = layer.attention(x, batch, keys, values, rope, eps, ops)
            x, residual = ops.add_rms_norm(x, residual, layer.mlp_norm, eps)
            update = layer.mlp(x, ops)
        return residual if update is None else residual + update
