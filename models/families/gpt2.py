"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm, biases everywhere, GELU.

Its checkpoints come under three sets of names: transformers' own, the same without their prefix (as the original's
conversion has them), and those of OpenAI's TensorFlow checkpoint. All store the projections as [in_features,
out_features], and queries, keys and values as one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, KVCache, LayerCache
from draftline.kernels.ops import Ops
from draftline.models.config import ModelConfig
from draftline.models.families.stored import StoredWeight
from draftline.models.hf_config import HfConfig
from draftline.models.hidden_states import NO_HIDDEN_STATES, HiddenStateSink, StateCopies
from draftline.models.layers import Attention, brief_layers, build_layers, wanted_states
from draftline.models.model import Model
from draftline.models.rope import no_rotation
from draftline.models.weight_shapes import Shape
from draftline.models.weights import Weights
from draftline.quant.linear import Linear

_ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh")


def gpt2_config(hf: HfConfig) -> ModelConfig:
    """GPT-2: absent fields are the smallest model's, as in transformers."""
    activation = hf.text("activation_function", "gelu_new")
    if activation not in _ACTIVATIONS:
        raise hf.error("activation_function", f"{activation!r} is not supported; {' and '.join(_ACTIVATIONS)} are")
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if hf.flag(name, False):
            raise hf.error(name, "true is not supported")
    hidden, heads = _size(hf, "n_embd", "hidden_size", 768), _size(hf, "n_head", "num_attention_heads", 12)
    layers = _size(hf, "n_layer", "num_hidden_layers", 12)
    if hidden % heads or hidden // heads % 2:
        raise hf.error("n_embd", f"{hidden} is not an even multiple of n_head = {heads}")
    bos = hf.token_ids("bos_token_id")
    return ModelConfig(
        family="GPT2LMHeadModel",
        vocab_size=hf.integer("vocab_size", 50257),
        hidden_size=hidden,
        intermediate_size=hf.optional_integer("n_inner", minimum=1) or 4 * hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        max_positions=_size(hf, "n_positions", "max_position_embeddings", 1024),
        norm_eps=hf.number("layer_norm_epsilon", 1e-5),
        rope_theta=0.0,
        rope_scaling=None,
        sliding_windows=(None,) * layers,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        qk_norm=False,
        tied_embeddings=hf.flag("tie_word_embeddings", True),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=hf.token_ids("eos_token_id"),
        attention_scale=None if hf.flag("scale_attn_weights", True) else 1.0,
    )


def _size(hf: HfConfig, name: str, other_name: str, default: int) -> int:
    """A size by GPT-2's name, or by that of other families, which transformers takes too."""
    other = hf.optional_integer(other_name, minimum=1)
    size = hf.integer(name, default if other is None else other)
    if other is not None and other != size:
        raise hf.error(other_name, f"{other}, but {name} is {size}")
    return size


def gpt2_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every weight of a model, in the order of the forward pass, with Llama's names where these exist."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.embed_positions.weight": (config.max_positions, hidden),
    }
    for layer in range(config.num_layers):
        for name, rows, columns in (
            ("input_layernorm", hidden, None),
            ("self_attn.qkv_proj", 3 * hidden, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("post_attention_layernorm", hidden, None),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            prefix = f"model.layers.{layer}.{name}."
            shapes[f"{prefix}weight"] = (rows,) if columns is None else (rows, columns)
            shapes[f"{prefix}bias"] = (rows,)
    shapes |= {"model.norm.weight": (hidden,), "model.norm.bias": (hidden,)}
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


_HF_NAME = re.compile(r"(?:transformer\.)?(?:h\.(\d+)\.)?([a-z_0-9.]+?)\.(weight|bias)")
_OPENAI_NAME = re.compile(r"(?:model/)?(?:h(\d+)/)?([a-z_0-9/]+?)(?:/([wbg]))?")
_OPENAI_KINDS = {"w": "weight", "g": "weight", "b": "bias", None: "weight"}
_TOP_LEVEL = {"wte": "embed_tokens", "wpe": "embed_positions", "ln_f": "norm"}
_IN_LAYER = {
    "ln_1": "input_layernorm",
    "attn.c_attn": "self_attn.qkv_proj",
    "attn.c_proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}


def gpt2_stored(name: str) -> StoredWeight:
    """The weight of a tensor of this name; others (the causal masks of old files) keep their names."""
    hf, openai = _HF_NAME.fullmatch(name), _OPENAI_NAME.fullmatch(name)
    if hf:
        layer, module, kind = hf[1], hf[2], hf[3]
    elif openai:
        layer, module, kind = openai[1], openai[2].replace("/", "."), _OPENAI_KINDS[openai[3]]
    else:
        return StoredWeight(name)
    known = (_TOP_LEVEL if layer is None else _IN_LAYER).get(module)
    if known is None:
        return StoredWeight(name)
    prefix = "model." if layer is None else f"model.layers.{layer}."
    return StoredWeight(f"{prefix}{known}.{kind}", transposed=kind == "weight" and "_proj" in known)


@dataclass(frozen=True, slots=True)
class _LayerNorm:
    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor, ops: Ops) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class _Gpt2Layer:
    """One pre-norm layer: attention, then an MLP with one hidden layer."""

    attention_norm: _LayerNorm
    attention: Attention
    mlp_norm: _LayerNorm
    up: Linear
    down: Linear

    def __call__(self, residual: Tensor, batch: Batch, cache: LayerCache, ops: Ops) -> Tensor:
        attention = self.attention
        qkv = attention.qkv.linear(self.attention_norm(residual, ops), ops)
        attended = ops.rope_attention(qkv, batch, cache, attention.spec)
        residual = attention.output.linear_add(attended, residual, ops)
        inner = ops.gelu(self.up.linear(self.mlp_norm(residual, ops), ops))
        return self.down.linear_add(inner, residual, ops)


class Gpt2(Model):
    """A GPT-2 with its weights on one device; see `Model` for attributes and `Decoder` for arguments and errors."""

    def __init__(self, weights: Weights, config: ModelConfig, ops: Ops) -> None:
        self.config = config
        self.dtype, self.device, self.cache_dtype = weights.dtype, weights.device, weights.cache_dtype
        self._ops = ops
        self._embedding, self._head = weights.embedding_and_head(config)
        self._positions = weights.positions("model.embed_positions.weight", config.max_positions, config.hidden_size)
        spec = AttentionSpec(no_rotation(config, self.device), config.score_scale)
        self._layers = build_layers(
            lambda index: _layer(weights, config, f"model.layers.{index}.", spec), config.num_layers, self.device
        )
        self.brief_layers = brief_layers((layer.attention, layer.up, layer.down) for layer in self._layers)
        self._norm = _norm(weights, config, "model.norm")
        self.quantization, self.nbytes = weights.formats, weights.nbytes

    @override
    def forward(self, batch: Batch, cache: KVCache, sink: HiddenStateSink = NO_HIDDEN_STATES) -> Tensor:
        ops = self._ops
        embedded = self._embedding(batch.token_ids, self.cache_dtype, ops)
        residual = embedded + F.embedding(batch.positions, self._positions).to(self.cache_dtype)
        copies = StateCopies(sink, residual, ops)
        for index, (layer, layer_cache) in enumerate(zip(self._layers, cache.layers, strict=False)):
            copies.before_layer(index, residual)
            residual = layer(residual, batch, layer_cache, ops)
        copies.finish(len(cache.layers), residual, batch)
        return self._head.linear(self._norm(wanted_states(residual, batch, ops), ops), ops)


def _norm(weights: Weights, config: ModelConfig, name: str) -> _LayerNorm:
    size = config.hidden_size
    return _LayerNorm(weights.vector(f"{name}.weight", size), weights.vector(f"{name}.bias", size), config.norm_eps)


def _layer(weights: Weights, config: ModelConfig, prefix: str, spec: AttentionSpec) -> _Gpt2Layer:
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    return _Gpt2Layer(
        attention_norm=_norm(weights, config, f"{prefix}input_layernorm"),
        attention=Attention(
            qkv=weights.linear(f"{prefix}self_attn.", {"qkv_proj": 3 * heads}, hidden, bias=True),
            output=weights.summed(f"{prefix}self_attn.", "o_proj", hidden, heads, bias=True),
            spec=spec,
        ),
        mlp_norm=_norm(weights, config, f"{prefix}post_attention_layernorm"),
        up=weights.linear(f"{prefix}mlp.", {"up_proj": inner}, hidden, bias=True),
        down=weights.summed(f"{prefix}mlp.", "down_proj", hidden, inner, bias=True),
    )
