"""``ForwardByOperation``: a decoder's forward pass over any `Ops`, one operation after the other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.ops import Ops
from draftline.kernels.residual import Residual
from draftline.models.layers import DecoderWeights


class ForwardByOperation:
    """The forward pass.

    Args:
        weights: the decoder.
        eps: RMSNorm's epsilon.
        dtype: of the activations.
        ops: the device's operations.
    """

    def __init__(self, weights: DecoderWeights, eps: float, dtype: torch.dtype, ops: Ops) -> None:
        self._weights, self._eps, self._dtype, self._ops = weights, eps, dtype, ops

    def __call__(self, batch: Batch, cache: KVCache) -> Tensor:
        """[S, vocab] logits; see ``Model.forward``."""
        ops, eps, weights = self._ops, self._eps, self._weights
        residual = Residual(F.embedding(batch.token_ids, weights.embedding).to(self._dtype))
        # The last norm reads only those tokens whose logits are wanted.
        following = (*(layer.attention_norm for layer in weights.layers[1:]), None)
        for layer, next_norm, (keys, values, scales) in zip(weights.layers, following, cache.layers, strict=True):
            residual = layer.attention(
                residual,
                layer.attention_norm,
                layer.mlp_norm,
                batch,
                keys,
                values,
                weights.rope,
                eps,
                ops,
                scales=scales,
            )
            residual = layer.mlp(residual, layer.mlp_norm, next_norm, eps, ops)
        wanted = Residual(residual.values.index_select(0, batch.logits_index))
        return weights.head.of_norm(wanted, weights.norm, eps, ops)
