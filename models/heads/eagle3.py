"""``Eagle3Head``: drafts tokens from the tokens and the target's hidden states before them.

An entry stands for a position i of a sequence: its inputs are the hidden state of position i and the embedding of token
i + 1. The hidden state is the target's, three layers fused into one vector, or where the target has not computed token
i yet, the head's own output for position i - 1. One decoder layer over all entries gives that output, which also
predicts token i + 2.

A parallel head (in the manner of P-EAGLE and DFlash) predicts all drafts of a round in one pass. The entries of
the drafts behind the first have the hidden state of the last entry before them, and in the place of the token, which is
not known yet, a trained vector for each distance. Such a head may have several layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.ops import Ops
from draftline.models.errors import ModelLoadError
from draftline.models.heads.checkpoint import HeadCheckpoint
from draftline.models.heads.config import HeadConfig
from draftline.models.heads.layers import EagerPass, HeadWeights
from draftline.models.heads.scripted import ScriptedPass
from draftline.models.layers import DecoderLayer, build_layers, decoder_layer
from draftline.models.rope import rope_table
from draftline.models.weight_shapes import EMBEDDING
from draftline.models.weights import Weights
from draftline.quant import UnsupportedFormatError
from draftline.quant.linear import Linear


class Eagle3Head:
    """A head with its weights, on one device.

    Args:
        checkpoint: the weights.
        ops: the device's operations.
        dtype: of the weights.
        device: of the weights.

    Attributes:
        config: its shape.
        cache_dtype: of activations and cache.
        device: of the weights.
        target_ids: [draft_vocab] int64, the target's token of each token that it can draft.
        first_mask_id: what a parallel head reads in the place of the token of its second draft. The others count up
            from it.
        quantization: the formats of its projections, joined with ``+``.

    Raises:
        ModelLoadError: a tensor is missing, or has another shape or format than it should.
    """

    def __init__(self, checkpoint: HeadCheckpoint, ops: Ops, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.device = checkpoint.config, device
        self.target_ids = checkpoint.target_ids.to(device)
        self.first_mask_id = self.config.layer.vocab_size
        weights = Weights(checkpoint.weights, dtype, device, scaled=ops.runs_scaled)
        self.cache_dtype = weights.cache_dtype
        try:
            layer, hidden = self.config.layer, self.config.layer.hidden_size
            self._fusion = _fusion(weights, self.config, ops)
            # A parallel pass has the same number of entries for every row. At the context's end, some stand beyond the
            # last position.
            positions = layer.max_positions + self.config.parallel_drafts - 1
            rope = rope_table(replace(layer, max_positions=positions), device)

            def build(index: int) -> DecoderLayer:
                # The first layer reads a token's embedding and a hidden state side by side.
                return decoder_layer(weights, layer, index, rope, hidden if index else 2 * hidden)

            # Eight bits shorten the file of the output projection. It runs in the activations' type, on every device.
            own = HeadWeights(
                vectors=_vectors(weights, self.config),
                hidden_norm=weights.vector("model.layers.0.hidden_norm.weight", hidden),
                layers=build_layers(build, layer.num_layers, device),
                norm=weights.vector("model.norm.weight", hidden),
                output=weights.dense_head(self.config.draft_vocab_size, hidden),
            )
        except UnsupportedFormatError as error:
            raise ModelLoadError(str(error)) from error
        self.quantization = weights.formats
        self._eager = EagerPass(own, self.config, ops)
        self._pass: Callable[[Batch, Tensor, Tensor, KVCache], tuple[Tensor, Tensor]] = (
            ScriptedPass(own, self.config, self.cache_dtype) if ops.scripted and device.type == "cpu" else self._eager
        )

    def fuse(self, states: Tensor) -> Tensor:
        """One hidden state from those of several layers: [T, layers, target_hidden] -> [T, hidden]."""
        return self._fusion(states)

    def fill_cache(self, batch: Batch, token_ids: Tensor, hidden: Tensor, cache: KVCache) -> None:
        """Write the keys and values of the batch's entries, and compute nothing else.

        Args:
            batch: the entries, whose own ``token_ids`` are not read.
            token_ids: [T] int64, the token behind each entry's position, or a number from `first_mask_id` on.
            hidden: [T, hidden], each entry's hidden state; it may be written over.
            cache: the keys and values.
        """
        self._eager.fill_cache(batch, token_ids, hidden, cache)

    def forward(self, batch: Batch, token_ids: Tensor, hidden: Tensor, cache: KVCache) -> tuple[Tensor, Tensor]:
        """Write the batch's keys and values to the cache, and predict from the S entries of ``logits_index``.

        Arguments are those of `fill_cache`.

        Returns:
            [S, draft_vocab] logits of the token after each entry's, and [S, hidden], the hidden state of the next
            entry.
        """
        return self._pass(batch, token_ids, hidden, cache)


def _vectors(weights: Weights, config: HeadConfig) -> Tensor:
    """What an entry can read as its token: the embeddings, and behind them the vectors of a parallel head's drafts."""
    hidden = config.layer.hidden_size
    embedding = weights.table(EMBEDDING, config.layer.vocab_size, hidden)
    if config.parallel_drafts == 1:
        return embedding
    return torch.cat((embedding, weights.table("mask_embedding", config.parallel_drafts - 1, hidden)))


@dataclass(frozen=True, slots=True)
class _Fusion:
    """The projection of several hidden states to one, with the norms that a format may have before it.

    Attributes:
        projection: of the states side by side.
        each: the [target_hidden] weights of each state's norm; empty without such norms.
        joined: the weights of the norm of all side by side; empty without it.
        eps: the norms' epsilon.
        ops: the device's operations.
    """

    projection: Linear
    each: tuple[Tensor, ...]
    joined: tuple[Tensor, ...]
    eps: float
    ops: Ops

    def __call__(self, states: Tensor) -> Tensor:
        """[T, layers, target_hidden] -> [T, hidden]."""
        for index, norm in enumerate(self.each):
            states[:, index] = self.ops.rms_norm(states[:, index].contiguous(), norm, self.eps)
        inputs = states.flatten(1)
        for norm in self.joined:
            inputs = self.ops.rms_norm(inputs, norm, self.eps)
        return self.projection.linear(inputs, self.ops)


def _fusion(weights: Weights, config: HeadConfig, ops: Ops) -> _Fusion:
    size, layers = config.target_hidden_size, len(config.target_layers)
    return _Fusion(
        projection=weights.linear("", {"fc": config.layer.hidden_size}, layers * size, bias=False),
        each=tuple(weights.vector(f"fc_norm.{index}.weight", size) for index in range(layers * config.fc_norm)),
        joined=(weights.vector("input_norm.weight", layers * size),) if config.norm_before_fc else (),
        eps=config.layer.norm_eps,
        ops=ops,
    )
