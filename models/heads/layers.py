"""The weights of a head's pass, and the pass operation by operation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.ops import Ops
from draftline.models.heads.config import HeadConfig
from draftline.models.layers import DecoderLayer
from draftline.quant.linear import Linear


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """What a pass of the head runs on.

    Attributes:
        vectors: what an entry can read as its token: the embeddings, and behind them the vectors of a parallel head's
            drafts.
        hidden_norm: the weights of the norm of the hidden states.
        layers: the decoder layers. The first one's attention reads a token's embedding and a hidden state side by side;
            its norm is the embedding's.
        norm: the weights of the norm before the output projection.
        output: the output projection.
    """

    vectors: Tensor
    hidden_norm: Tensor
    layers: tuple[DecoderLayer, ...]
    norm: Tensor
    output: Linear


class EagerPass:
    """A pass of the head by the device's operations."""

    def __init__(self, weights: HeadWeights, config: HeadConfig, ops: Ops) -> None:
        self._weights, self._config, self._ops = weights, config, ops

    def fill_cache(self, batch: Batch, token_ids: Tensor, hidden: Tensor, cache: KVCache) -> None:
        """Write the batch's keys and values alone; the arguments are those of `Eagle3Head.fill_cache`."""
        qkv, _ = self._before_last_attention(batch, token_ids, hidden, cache)
        self._ops.rope_write_kv(qkv, batch, cache.layers[-1], self._weights.layers[-1].attention.spec)

    def __call__(self, batch: Batch, token_ids: Tensor, hidden: Tensor, cache: KVCache) -> tuple[Tensor, Tensor]:
        """[S, draft_vocab] logits and [S, hidden]; the arguments are those of `Eagle3Head.forward`."""
        ops, layer, eps = self._ops, self._weights.layers[-1], self._config.layer.norm_eps
        qkv, residual = self._before_last_attention(batch, token_ids, hidden, cache)
        attended = ops.rope_attention(qkv, batch, cache.layers[-1], layer.attention.spec)
        # Only the entries that predict need the rest of the layer. Where each of them does, they are in order.
        if batch.logits_index.shape[0] < token_ids.shape[0]:
            attended, residual = (ops.take_rows(x, batch.logits_index) for x in (attended, residual))
        residual = layer.attention.output.linear_add(attended, residual, ops)
        residual = layer.mlp(residual, layer.mlp_norm, eps, ops)
        norm = self._weights.norm
        logits = self._weights.output.norm_linear(residual, norm, eps, ops)
        return logits, ops.rms_norm(residual, norm, eps) if self._config.norm_output else residual

    def _before_last_attention(
        self, batch: Batch, token_ids: Tensor, hidden: Tensor, cache: KVCache
    ) -> tuple[Tensor, Tensor]:
        """Queries, keys and values of the entries in the last layer, and the residual stream before it."""
        ops, weights, eps = self._ops, self._weights, self._config.layer.norm_eps
        first = weights.layers[0]
        inputs, normed = ops.joined_norms(
            weights.vectors, token_ids, first.attention_norm, hidden, weights.hidden_norm, eps
        )
        qkv = first.attention.qkv.linear(inputs, ops)
        residual = normed if self._config.norm_before_residual else hidden
        for layer, following, layer_cache in zip(weights.layers, weights.layers[1:], cache.layers, strict=False):
            attended = ops.rope_attention(qkv, batch, layer_cache, layer.attention.spec)
            residual = layer.attention.output.linear_add(attended, residual, ops)
            residual = layer.mlp(residual, layer.mlp_norm, eps, ops)
            qkv = following.attention.qkv.norm_linear(residual, following.attention_norm, eps, ops)
        return qkv, residual
