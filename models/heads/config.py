"""``HeadConfig``: an EAGLE-3 head's shape, from the ``config.json`` of either of its two formats.

- The ``speculators`` library's: ``speculators_model_type`` is ``eagle3``, and ``transformer_layer_config`` describes
  the decoder layer (https://docs.vllm.ai/projects/speculators).
- EAGLE's own, which SpecForge writes too: the layer's fields, and ``draft_vocab_size`` beside them
  (https://github.com/SafeAILab/EAGLE, https://github.com/sgl-project/SpecForge).

The network is that of Li et al. 2025 (https://arxiv.org/abs/2503.01840).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from draftline.models.config import ModelConfig
from draftline.models.families.llama import llama_config
from draftline.models.families.qwen3 import qwen3_config
from draftline.models.hf_config import HfConfig
from draftline.models.weight_shapes import HEAD, Shape, decoder_shapes

_LAYERS: dict[str, Callable[[HfConfig], ModelConfig]] = {"llama": llama_config, "qwen3": qwen3_config}
"""Readers of the decoder layer's fields, by ``model_type``."""

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
"""The field of ``target_layers``."""

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
"""The fields that are true or false, and false where they are missing."""

PARALLEL_DRAFTS = "parallel_drafts"
"""The field of a parallel head's ``config.json``, which only this project's heads have."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The shape of a head.

    Attributes:
        layer: its decoder layer. The vocabulary and the positions are the target's.
        draft_vocab_size: the tokens that it can draft.
        target_hidden_size: width of the target's hidden states.
        target_layers: for each i, it reads the target's residual stream before layer i.
        norm_before_residual: whether the residual stream is the normalised hidden state.
        norm_before_fc: whether the joined hidden states are normalised before they are fused.
        fc_norm: whether each of the hidden states is normalised before they are fused.
        norm_output: whether the next draft continues from the normalised output.
        parallel_drafts: the most drafts of one pass, of a head that drafts all tokens at once; 1 of any other.
    """

    layer: ModelConfig
    draft_vocab_size: int
    target_hidden_size: int
    target_layers: tuple[int, ...]
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    parallel_drafts: int = 1


def is_head_config(values: Mapping[str, object]) -> bool:
    """Whether a ``config.json`` is a head's: it names the algorithm, or a vocabulary of drafts."""
    architectures = values.get("architectures")
    named = isinstance(architectures, list) and any("eagle3" in str(name).lower() for name in architectures)
    return named or "speculators_model_type" in values or "draft_vocab_size" in values


def head_config(
    values: Mapping[str, object], where: str, target: ModelConfig, text_tokens: Callable[[], int] | None = None
) -> HeadConfig:
    """The configuration of a head for ``target``, with the sizes of vocabularies in the head's files.

    Args:
        values: the content of ``config.json``.
        where: the file that error messages name.
        target: the target's shape.
        text_tokens: see `draftline.models.heads.checkpoint.open_head`.

    Raises:
        ModelLoadError: a field is missing or malformed, requests an unsupported feature, or does not fit the target.
    """
    hf = HfConfig(values, where)
    kind = hf.text("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise hf.error("speculators_model_type", f"{kind!r} is not supported; 'eagle3' is")
    fields = hf.section("transformer_layer_config") or hf
    model_type = fields.text("model_type", "llama")
    if model_type not in _LAYERS:
        raise fields.error("model_type", f"{model_type!r} is not supported for heads; {', '.join(_LAYERS)} are")
    layer = _LAYERS[model_type](fields)
    parallel = hf.integer(PARALLEL_DRAFTS, 1)
    if layer.num_layers != 1 and parallel == 1:
        raise fields.error("num_hidden_layers", f"{layer.num_layers} is not supported for heads; 1 is")
    size = hf.integer("target_hidden_size", target.hidden_size)
    if size != target.hidden_size:
        raise hf.error("target_hidden_size", f"{size}, but the target's hidden_size is {target.hidden_size}")
    smaller = min(layer.vocab_size, target.vocab_size)
    if layer.vocab_size != target.vocab_size and (text_tokens is None or smaller < text_tokens()):
        raise fields.error("vocab_size", f"{layer.vocab_size}, but the target's vocabulary has {target.vocab_size}")
    drafted = hf.integer("draft_vocab_size", layer.vocab_size)
    if drafted > layer.vocab_size:
        raise hf.error("draft_vocab_size", f"{drafted}, but the target's vocabulary has {layer.vocab_size}")
    inner = hf.section("eagle_config") or HfConfig({}, where)
    if not inner.flag("use_aux_hidden_state", True):
        raise inner.error("use_aux_hidden_state", "false is not supported; heads read hidden states of several layers")
    return HeadConfig(
        layer=replace(layer, max_positions=target.max_positions, tied_embeddings=hf.flag("tie_word_embeddings", False)),
        draft_vocab_size=drafted,
        target_hidden_size=size,
        target_layers=_target_layers(hf, inner, target.num_layers),
        parallel_drafts=parallel,
        **{name: hf.flag(name, inner.flag(name, False)) for name in FLAGS},
    )


def _target_layers(hf: HfConfig, inner: HfConfig, num_layers: int) -> tuple[int, ...]:
    """The layers whose input is read. In ``eagle_config``, the ids are those of layers whose output is read."""
    ids = hf.integers(LAYER_IDS) or tuple(layer + 1 for layer in inner.integers(LAYER_IDS))
    layers = ids or (2, num_layers // 2, num_layers - 3)
    if not all(a < b for a, b in pairwise(layers)) or layers[0] < 0 or layers[-1] > num_layers:
        raise hf.error(LAYER_IDS, f"{list(layers)} do not ascend between 0 and the target's {num_layers} layers")
    return layers


def head_shapes(config: HeadConfig) -> dict[str, Shape]:
    """Every weight of a head with its shape: a decoder's names, and the head's own."""
    layer, hidden = config.layer, config.layer.hidden_size
    prefix, attention = "model.layers.0.", "model.layers.0.self_attn."
    joined = len(config.target_layers) * config.target_hidden_size
    shapes = decoder_shapes(replace(layer, tied_embeddings=False))
    # The first layer reads two vectors side by side: a token's embedding, and the hidden state before it.
    for name in ("q_proj", "k_proj", "v_proj"):
        shapes[f"{attention}{name}.weight"] = (shapes[f"{attention}{name}.weight"][0], 2 * hidden)
    shapes |= {
        f"{prefix}hidden_norm.weight": (hidden,),
        "fc.weight": (hidden, joined),
        HEAD: (config.draft_vocab_size, hidden),
    }
    if config.parallel_drafts > 1:
        shapes["mask_embedding"] = (config.parallel_drafts - 1, hidden)
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (joined,)
    if config.fc_norm:
        for index in range(len(config.target_layers)):
            shapes[f"fc_norm.{index}.weight"] = (config.target_hidden_size,)
    return shapes
