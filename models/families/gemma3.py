"""Gemma 3's text decoder (https://arxiv.org/abs/2503.19786), by itself or out of a checkpoint that also sees images.

Like Llama, but: norms before and after attention and MLP, whose weights are kept as their distance from 1; queries and
keys are normalised; embeddings are scaled by the root of their width; GeGLU; most layers have a sliding window and
rotary frequencies of their own. Soft caps of scores and logits, which Gemma 2 had, hold where config.json has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, KVCache, LayerCache
from draftline.kernels.ops import Ops
from draftline.models.config import ModelConfig
from draftline.models.families.stored import StoredWeight
from draftline.models.hf_config import FULL, SLIDING, HfConfig, rope_scaling, windows_by_type
from draftline.models.hidden_states import NO_HIDDEN_STATES, HiddenStateSink, StateCopies
from draftline.models.layers import Attention, brief_layers, build_layers, wanted_states
from draftline.models.model import Model
from draftline.models.rope import local_rope_table, rope_table
from draftline.models.weight_shapes import Shape, decoder_shapes
from draftline.models.weights import Weights
from draftline.quant.linear import Linear

_ACTIVATION = "gelu_pytorch_tanh"


def gemma3_config(hf: HfConfig) -> ModelConfig:
    """Gemma 3; for a model that also sees images, its ``text_config``. Absent fields are as in transformers."""
    text = hf.section("text_config") or hf
    activation = text.text("hidden_activation", _ACTIVATION)
    if activation != _ACTIVATION:
        raise text.error("hidden_activation", f"{activation!r} is not supported; only {_ACTIVATION!r} is")
    if text.flag("use_bidirectional_attention", False):
        raise text.error("use_bidirectional_attention", "true is not supported")
    heads, kv_heads = text.integer("num_attention_heads", 8), text.integer("num_key_value_heads", 4)
    if heads % kv_heads:
        raise text.error("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads = {heads}")
    head_dim = text.integer("head_dim", 256)
    if head_dim % 2:
        raise text.error("head_dim", f"{head_dim} is odd, so it has no rotary halves")
    bos = hf.token_ids("bos_token_id") or text.token_ids("bos_token_id") or (2,)
    bias = text.flag("attention_bias", False)
    theta, factor, local_theta = _rope(text)
    windows = _windows(text)
    return ModelConfig(
        family="Gemma3ForCausalLM",
        vocab_size=text.integer("vocab_size", 262_208),
        hidden_size=text.integer("hidden_size", 2304),
        intermediate_size=text.integer("intermediate_size", 9216),
        num_layers=len(windows),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=text.integer("max_position_embeddings", 131_072),
        norm_eps=text.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=None,
        sliding_windows=windows,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=False,
        qk_norm=True,
        tied_embeddings=hf.flag("tie_word_embeddings", text.flag("tie_word_embeddings", True)),
        bos_token_id=bos[0],
        eos_token_ids=hf.token_ids("eos_token_id") or text.token_ids("eos_token_id") or (1,),
        local_rope_theta=local_theta,
        rope_factor=factor,
        attention_scale=text.number("query_pre_attn_scalar", 256) ** -0.5,
        attention_soft_cap=text.optional_number("attn_logit_softcapping") or 0.0,
        logits_soft_cap=text.optional_number("final_logit_softcapping") or 0.0,
    )


def _windows(text: HfConfig) -> tuple[int | None, ...]:
    """By ``layer_types``, or else every layer but each sixth (``sliding_window_pattern``)."""
    layers, window = text.integer("num_hidden_layers", 26), text.window(4096)
    types = text.strings("layer_types")
    if types is None:
        pattern = text.integer("sliding_window_pattern", 6)
        types = tuple(SLIDING if (layer + 1) % pattern else FULL for layer in range(layers))
    if window is None and SLIDING in types:
        raise text.error("sliding_window", f"missing, though there are layers of the type {SLIDING!r}")
    return windows_by_type(text, types, layers, window)


def _rope(text: HfConfig) -> tuple[float, float, float]:
    """Base and factor of the layers without a window, and base of those with one.

    From ``rope_parameters`` by layer type (transformers 5), or the fields that there were before.
    """
    by_type = text.section("rope_parameters")
    full = rope_scaling(text, None if by_type is None else by_type.section(FULL))
    local = None
    if by_type is not None:
        for name in ("rope_type", "rope_theta"):
            if by_type.has(name):
                raise by_type.error(name, f"is expected in {FULL} and {SLIDING}, each by itself")
        full, local = by_type.section(FULL) or full, by_type.section(SLIDING)
    full, local = full or HfConfig({}), local or HfConfig({})
    theta = full.number("rope_theta", text.number("rope_theta", 1e6))
    local_theta = local.number("rope_theta", text.number("rope_local_base_freq", 1e4))
    local_kind = local.text("rope_type", "default")
    if local_kind != "default":
        raise local.error("rope_type", f"{local_kind!r} is not supported; only 'default' is")
    kind = full.text("rope_type", full.text("type", "default"))
    if kind not in ("default", "linear"):
        raise full.error("rope_type", f"{kind!r} is not supported; 'default' and 'linear' are")
    return theta, full.number("factor") if kind == "linear" else 1.0, local_theta


def gemma3_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every weight of a model by its HF name."""
    shapes = decoder_shapes(config)
    for layer in range(config.num_layers):
        for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
            shapes[f"model.layers.{layer}.{name}.weight"] = (config.hidden_size,)
    return shapes


def gemma3_stored(name: str) -> StoredWeight:
    """The weight of a tensor of this name. In a model that also sees images, the text's names are one level deeper."""
    for prefix, replacement in (("language_model.", ""), ("model.language_model.", "model.")):
        if name.startswith(prefix):
            return StoredWeight(replacement + name.removeprefix(prefix))
    return StoredWeight(name)


@dataclass(frozen=True, slots=True)
class _Gemma3Layer:
    """One layer, with a norm before and after each of its halves."""

    attention_norm: Tensor
    attention: Attention
    post_attention_norm: Tensor
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    post_mlp_norm: Tensor

    def __call__(self, residual: Tensor, batch: Batch, cache: LayerCache, eps: float, ops: Ops) -> Tensor:
        attention = self.attention
        qkv = attention.qkv.norm_linear(residual, self.attention_norm, eps, ops)
        attended = ops.rope_attention(qkv, batch, cache, attention.spec)
        residual = ops.rms_norm_add(attention.output.linear(attended, ops), self.post_attention_norm, eps, residual)
        inner = ops.gelu_mul(self.gate_up.norm_linear(residual, self.mlp_norm, eps, ops))
        return ops.rms_norm_add(self.down.linear(inner, ops), self.post_mlp_norm, eps, residual)


class Gemma3(Model):
    """A Gemma 3 with its weights on one device; see `Model` for attributes and `Decoder` for arguments and errors."""

    def __init__(self, weights: Weights, config: ModelConfig, ops: Ops) -> None:
        self.config = config
        self.dtype, self.device, self.cache_dtype = weights.dtype, weights.device, weights.cache_dtype
        self._ops = ops
        self._embedding, self._head = weights.embedding_and_head(config)
        # Rounded as the embeddings are: training did so too.
        self._embedding_scale = torch.tensor(config.hidden_size**0.5, dtype=self.cache_dtype).item()
        rope, local_rope = rope_table(config, self.device), local_rope_table(config, self.device)
        ropes = [rope if window is None else local_rope for window in config.sliding_windows]
        self._layers = build_layers(
            lambda index: _layer(weights, config, index, ropes[index]), config.num_layers, self.device
        )
        self.brief_layers = brief_layers((layer.attention, layer.gate_up, layer.down) for layer in self._layers)
        self._norm = weights.vector_plus_one("model.norm.weight", config.hidden_size)
        self.quantization, self.nbytes = weights.formats, weights.nbytes

    @override
    def forward(self, batch: Batch, cache: KVCache, sink: HiddenStateSink = NO_HIDDEN_STATES) -> Tensor:
        ops, eps = self._ops, self.config.norm_eps
        residual = self._embedding(batch.token_ids, self.cache_dtype, ops) * self._embedding_scale
        copies = StateCopies(sink, residual, ops)
        for index, (layer, layer_cache) in enumerate(zip(self._layers, cache.layers, strict=False)):
            copies.before_layer(index, residual)
            residual = layer(residual, batch, layer_cache, eps, ops)
        copies.finish(len(cache.layers), residual, batch)
        wanted = wanted_states(residual, batch, ops)
        logits = self._head.norm_linear(wanted, self._norm, eps, ops)
        cap = self.config.logits_soft_cap
        return ops.soft_cap(logits, cap) if cap else logits


def _layer(weights: Weights, config: ModelConfig, index: int, rope: Tensor) -> _Gemma3Layer:
    prefix = f"model.layers.{index}."
    hidden, intermediate, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * head_dim, config.num_kv_heads * head_dim
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    qkv = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    return _Gemma3Layer(
        attention_norm=weights.vector_plus_one(f"{prefix}input_layernorm.weight", hidden),
        attention=Attention(
            qkv=weights.linear(attention, qkv, hidden, bias=config.qkv_bias),
            output=weights.summed(attention, "o_proj", hidden, queries, bias=config.output_bias),
            spec=AttentionSpec(
                rope=rope,
                scale=config.score_scale,
                window=config.sliding_windows[index],
                soft_cap=config.attention_soft_cap,
                norms=(
                    weights.vector_plus_one(f"{attention}q_norm.weight", head_dim),
                    weights.vector_plus_one(f"{attention}k_norm.weight", head_dim),
                ),
                eps=config.norm_eps,
            ),
        ),
        post_attention_norm=weights.vector_plus_one(f"{prefix}post_attention_layernorm.weight", hidden),
        mlp_norm=weights.vector_plus_one(f"{prefix}pre_feedforward_layernorm.weight", hidden),
        gate_up=weights.linear(mlp, {"gate_proj": intermediate, "up_proj": intermediate}, hidden, bias=False),
        down=weights.summed(mlp, "down_proj", hidden, intermediate, bias=False),
        post_mlp_norm=weights.vector_plus_one(f"{prefix}post_feedforward_layernorm.weight", hidden),
    )
