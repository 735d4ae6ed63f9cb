"""The parts of a Llama-like decoder over `Ops` and `Linear`: attention, gated MLP, layers. Other families reuse them.

They hold weights and call operations. Device and weight format are hidden behind those two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.ops import Ops
from draftline.models.config import ModelConfig
from draftline.models.parallel.linear import Embedding
from draftline.models.weights import Weights
from draftline.quant.linear import Linear

_MAX_THREADS = 4
"""Threads that build layers: each holds a projection's weights unpacked."""

_LayerT = TypeVar("_LayerT")


@dataclass(frozen=True, slots=True)
class Attention:
    """Self-attention over the paged cache.

    Attributes:
        qkv: merged query, key and value projection.
        output: the output projection.
        spec: rotation, norms and scores between the two.
    """

    qkv: Linear
    output: Linear
    spec: AttentionSpec

    def __call__(
        self,
        residual: Tensor,
        norm: Tensor,
        eps: float,
        batch: Batch,
        cache: LayerCache,
        ops: Ops,
    ) -> Tensor:
        """The residual stream [T, hidden], with the attention of its norm added; it may be written over.

        Writes the batch's keys and values to the cache.
        """
        qkv = self.qkv.norm_linear(residual, norm, eps, ops)
        return self.output.linear_add(ops.rope_attention(qkv, batch, cache, self.spec), residual, ops)

    def logits_only(
        self,
        residual: Tensor,
        norm: Tensor,
        eps: float,
        batch: Batch,
        wanted: Batch,
        cache: LayerCache,
        ops: Ops,
    ) -> Tensor:
        """The same for the ``wanted`` tokens of the batch alone (`Batch.logits_only`), [S, hidden].

        Writes all keys and values.
        """
        qkv = self.qkv.norm_linear(residual, norm, eps, ops)
        queries = ops.rope_write_kv(qkv, batch, cache, self.spec).index_select(0, batch.logits_index)
        residual = residual.index_select(0, batch.logits_index)
        return self.output.linear_add(ops.attention(queries, wanted, cache, self.spec), residual, ops)


def wanted_states(residual: Tensor, batch: Batch, ops: Ops) -> Tensor:
    """The residual stream of the tokens whose logits are wanted: [T, hidden] -> [S, hidden]."""
    # Where those are all tokens, as in decodes, they are in order.
    count = batch.logits_index.shape[0]
    return residual[:count] if sum(batch.query_lens_host) == count else ops.take_rows(residual, batch.logits_index)


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """SwiGLU (Shazeer 2020, https://arxiv.org/abs/2002.05202).

    Attributes:
        gate_up: merged gate and up projection.
        down: the down projection.
    """

    gate_up: Linear
    down: Linear

    def __call__(self, residual: Tensor, norm: Tensor, eps: float, ops: Ops) -> Tensor:
        """The residual stream [T, hidden], with the MLP of its norm added; it may be written over."""
        return self.down.linear_add(self.gate_up.norm_swiglu(residual, norm, eps, ops), residual, ops)


def build_layers(build: Callable[[int], _LayerT], count: int, device: torch.device) -> tuple[_LayerT, ...]:
    """The layers ``build(0)``, ``build(1)``, and so on.

    On a CPU several threads build them: packing a weight takes a core for some milliseconds, and torch's operations
    leave Python to other threads.
    """
    if device.type != "cpu":
        return tuple(map(build, range(count)))
    with ThreadPoolExecutor(min(torch.get_num_threads(), _MAX_THREADS)) as threads:
        return tuple(threads.map(build, range(count)))


def brief_layers(layers: Iterable[tuple[Attention, Linear, Linear]]) -> int:
    """How many of the first layers do all that the whole model does; see ``Model``.

    Args:
        layers: of each, the attention and the MLP's two projections.
    """
    kinds = [
        (attention.spec.window, attention.qkv.format, attention.output.format, up.format, down.format)
        for attention, up, down in layers
    ]
    every = max(kinds.index(kind) for kind in kinds) + 1
    # A last layer computes only tokens that decide, so behind one of every kind there must be one of the last one's.
    return next((index for index in range(every, len(kinds)) if kinds[index] == kinds[-1]), len(kinds) - 1) + 1


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One pre-norm layer.

    Attributes:
        attention_norm: [hidden] weights of the norm before the attention.
        attention: the attention.
        mlp_norm: [hidden] weights of the norm before the MLP.
        mlp: the MLP.
    """

    attention_norm: Tensor
    attention: Attention
    mlp_norm: Tensor
    mlp: GatedMlp


def decoder_layer(
    weights: Weights, config: ModelConfig, index: int, rope: Tensor, inputs: int | None = None
) -> DecoderLayer:
    """A layer of a checkpoint. Its attention reads vectors of ``inputs`` channels; None where they are hidden states.

    Raises:
        ModelLoadError: a tensor is missing, or has another shape or format than it should.
    """
    hidden, intermediate, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * head_dim, config.num_kv_heads * head_dim
    prefix = f"model.layers.{index}."
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    norms = None
    if config.qk_norm:
        norms = (
            weights.vector(f"{attention}q_norm.weight", head_dim),
            weights.vector(f"{attention}k_norm.weight", head_dim),
        )
    qkv = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    gate_up = {"gate_proj": intermediate, "up_proj": intermediate}
    return DecoderLayer(
        attention_norm=weights.vector(f"{prefix}input_layernorm.weight", hidden),
        attention=Attention(
            qkv=weights.linear(attention, qkv, inputs or hidden, bias=config.qkv_bias),
            output=weights.summed(attention, "o_proj", hidden, queries, bias=config.output_bias),
            spec=AttentionSpec(
                rope, config.score_scale, config.sliding_windows[index], norms=norms, eps=config.norm_eps
            ),
        ),
        mlp_norm=weights.vector(f"{prefix}post_attention_layernorm.weight", hidden),
        mlp=GatedMlp(
            gate_up=weights.linear(mlp, gate_up, hidden, bias=config.mlp_bias),
            down=weights.summed(mlp, "down_proj", hidden, intermediate, bias=config.mlp_bias),
        ),
    )


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A decoder's weights.

    Attributes:
        embedding: the token embeddings.
        layers: the layers.
        norm: [hidden] weights of the final norm.
        head: the output projection.
    """

    embedding: Embedding
    layers: tuple[DecoderLayer, ...]
    norm: Tensor
    head: Linear
