"""``Decoder``: the Llama-like decoder that most families are, told apart by their ModelConfig alone.

Its forward pass is `EagerForward`, operation by operation, or on a CPU `models.scripted`, one TorchScript program.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from draftline import quant
from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.ops import Ops
from draftline.models.config import ModelConfig
from draftline.models.hidden_states import NO_HIDDEN_STATES, HiddenStateSink, StateCopies
from draftline.models.layers import DecoderWeights, brief_layers, build_layers, decoder_layer, wanted_states
from draftline.models.model import Model
from draftline.models.rope import rope_table
from draftline.models.scripted import ScriptedForward
from draftline.models.weights import Weights


class Decoder(Model):
    """A decoder-only transformer with its weights, on one device.

    Args:
        weights: the checkpoint's.
        config: the model's shape; ``config.max_positions`` is the longest sequence that it will run.
        ops: the device's operations.

    Attributes:
        config: the model's shape.
        dtype: of the weights.
        cache_dtype: of activations and cache.
        device: of the weights.
        quantization: the formats of its layers' projections, for reports.
        nbytes: bytes of its weights.
        brief_layers: see `Model`.

    Raises:
        ModelLoadError: a tensor is missing, or has another shape or format than it should.
    """

    def __init__(self, weights: Weights, config: ModelConfig, ops: Ops) -> None:
        self.config = config
        self.dtype, self.device, self.cache_dtype = weights.dtype, weights.device, weights.cache_dtype
        embedding, head = weights.embedding_and_head(config)
        rope = rope_table(config, self.device)
        decoder = DecoderWeights(
            embedding=embedding,
            layers=build_layers(
                lambda index: decoder_layer(weights, config, index, rope), config.num_layers, self.device
            ),
            norm=weights.vector("model.norm.weight", config.hidden_size),
            head=head,
        )
        self._run: Callable[[Batch, KVCache, HiddenStateSink], Tensor]
        if ops.scripted and weights.shard.scripted and self.device.type == "cpu":
            self._run = ScriptedForward(
                decoder, config, self.cache_dtype, lambda count: quant.rows_to_run(count, self.dtype, self.device)
            )
            self.brief_layers = config.num_layers
        else:
            self._run = EagerForward(decoder, config.norm_eps, self.cache_dtype, ops)
            self.brief_layers = brief_layers(
                (layer.attention, layer.mlp.gate_up, layer.mlp.down) for layer in decoder.layers
            )
        self.quantization = weights.formats
        self.nbytes = weights.nbytes

    @override
    def forward(self, batch: Batch, cache: KVCache, sink: HiddenStateSink = NO_HIDDEN_STATES) -> Tensor:
        return self._run(batch, cache, sink)


class EagerForward:
    """The forward pass, operation by operation.

    Args:
        weights: the decoder.
        eps: RMSNorm's epsilon.
        dtype: of the activations.
        ops: the device's operations.
    """

    def __init__(self, weights: DecoderWeights, eps: float, dtype: torch.dtype, ops: Ops) -> None:
        self._weights, self._eps, self._dtype, self._ops = weights, eps, dtype, ops

    def __call__(self, batch: Batch, cache: KVCache, sink: HiddenStateSink = NO_HIDDEN_STATES) -> Tensor:
        """[S, vocab] logits; see ``Model.forward``.

        Behind the last layer's keys and values, only the tokens whose logits are wanted go on.
        """
        ops, eps, weights = self._ops, self._eps, self._weights
        residual = weights.embedding(batch.token_ids, self._dtype, ops)
        copies = StateCopies(sink, residual, ops)
        last = len(cache.layers) - 1
        # Where a drafter reads the last layer's output, it reads that of all tokens.
        wanted = batch.logits_only() if last + 1 not in sink.layers else None
        for index, (layer, layer_cache) in enumerate(zip(weights.layers, cache.layers, strict=False)):
            copies.before_layer(index, residual)
            attend = layer.attention
            if index == last and wanted is not None:
                residual = attend.logits_only(residual, layer.attention_norm, eps, batch, wanted, layer_cache, ops)
            else:
                residual = attend(residual, layer.attention_norm, eps, batch, layer_cache, ops)
            residual = layer.mlp(residual, layer.mlp_norm, eps, ops)
        copies.finish(last + 1, residual, batch)
        states = residual if wanted is not None else wanted_states(residual, batch, ops)
        return weights.head.norm_linear(states, weights.norm, eps, ops)
