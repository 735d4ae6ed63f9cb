"""A GGUF file's metadata as the ``config.json`` that its model had before it was converted.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Unsupported features in the metadata are rejected, not
ignored. Fields that a conversion drops are lost: Mistral 7B v0.1's sliding window is gone, as in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from draftline.models.checkpoints.hf_fields import scaling_fields
from draftline.models.config import ModelConfig
from draftline.models.families import config_from_hf
from draftline.models.gguf.fields import GGUFFields
from draftline.models.gguf.file import GGUFFile
from draftline.models.gguf.rope_freqs import scaling_of_factors

ARCHITECTURES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""HF's architecture by general.architecture. Mistral's models are converted as llama."""

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
ROPE_FACTORS = "rope_freqs.weight"

_NEUTRAL: dict[str, tuple[float, ...]] = {
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (-1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}
"""Keys of features that none of the architectures has here, with the values that do nothing in llama.cpp."""


def architecture(fields: GGUFFields) -> str:
    """The file's ``general.architecture``.

    Raises:
        ModelLoadError: it is missing or not supported.
    """
    name = fields.text("general.architecture")
    if name not in ARCHITECTURES:
        raise fields.error("general.architecture", f"{name!r} is not supported; {', '.join(ARCHITECTURES)} are")
    return name


def gguf_config(file: GGUFFile, rope_factors: Sequence[float] | None) -> ModelConfig:
    """The configuration of a GGUF file's model.

    Args:
        file: the file.
        rope_factors: its ``rope_freqs.weight``, if it has one: the divisor of each rotary frequency.

    Raises:
        ModelLoadError: the architecture or something it asks for is not supported, or a key is missing or malformed.
    """
    fields = GGUFFields(file)
    arch = architecture(fields)
    _refuse_unsupported(fields, arch, file.metadata)
    embedding = file.tensors.get(EMBEDDING)
    if embedding is None:
        raise fields.error(EMBEDDING, "the tensor is missing")
    hidden = fields.integer(f"{arch}.embedding_length")
    heads = fields.integer(f"{arch}.attention.head_count")
    if heads < 1:
        raise fields.error(f"{arch}.attention.head_count", f"{heads} is not a number of heads")
    theta = fields.number(f"{arch}.rope.freq_base", 10000.0)
    hf: dict[str, object] = {
        "architectures": [ARCHITECTURES[arch]],
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": fields.integer(f"{arch}.feed_forward_length"),
        "num_hidden_layers": _num_layers(fields, arch, file),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer(f"{arch}.attention.head_count_kv", heads),
        "head_dim": _head_dim(fields, arch, hidden // heads),
        "max_position_embeddings": fields.integer(f"{arch}.context_length"),
        "rms_norm_eps": fields.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(fields, arch, theta, rope_factors),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "tie_word_embeddings": OUTPUT not in file.tensors,
        "bos_token_id": fields.optional_integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.optional_integer("tokenizer.ggml.eos_token_id"),
    }
    config = config_from_hf(hf, str(file.path))
    window = fields.integer(f"{arch}.attention.sliding_window", 0)
    if 0 < window < config.max_positions:
        raise fields.error(
            f"{arch}.attention.sliding_window", f"{window}: which layers it holds for is not known from a GGUF file"
        )
    return config


def _refuse_unsupported(fields: GGUFFields, arch: str, present: Collection[str]) -> None:
    if "split.count" in present and fields.integer("split.count") > 1:
        raise fields.error(
            "split.count", "the model is split over several files; merge them (llama-gguf-split --merge)"
        )
    if fields.integer(f"{arch}.expert_count", 0) > 0:
        raise fields.error(f"{arch}.expert_count", "mixtures of experts are not supported")
    if not fields.flag(f"{arch}.attention.causal", True):
        raise fields.error(f"{arch}.attention.causal", "false is not supported")
    for name, neutral in _NEUTRAL.items():
        key = f"{arch}.{name}"
        if (value := fields.number(key, neutral[0])) not in neutral:
            raise fields.error(key, f"{value} is not supported; only {' or '.join(map(str, neutral))} is")


def _num_layers(fields: GGUFFields, arch: str, file: GGUFFile) -> int:
    key = f"{arch}.block_count"
    layers = fields.integer(key)
    if f"blk.{layers - 1}.attn_norm.weight" not in file.tensors:
        raise fields.error(key, f"says {layers}, but the file lacks tensors of that many layers")
    return layers


def _head_dim(fields: GGUFFields, arch: str, default: int) -> int:
    head_dim = fields.integer(f"{arch}.attention.key_length", default)
    for key in (f"{arch}.attention.value_length", f"{arch}.rope.dimension_count"):
        size = fields.integer(key, head_dim)
        if size != head_dim:
            raise fields.error(key, f"{size} differs from the head size {head_dim}, which is not supported")
    return head_dim


def _rope_scaling(
    fields: GGUFFields, arch: str, theta: float, factors: Sequence[float] | None
) -> dict[str, object] | None:
    key = f"{arch}.rope.scaling.type"
    kind = fields.text(key, "linear")
    factor = fields.number(f"{arch}.rope.scaling.factor", fields.number(f"{arch}.rope.scale_linear", 1.0))
    if kind not in ("none", "linear", "yarn"):
        raise fields.error(key, f"{kind!r} is not supported; 'none', 'linear', 'yarn' and Llama 3's scaling are")
    other: dict[str, object] | None = None
    if kind != "none" and factor not in (0.0, 1.0):
        other = _yarn(fields, arch, factor) if kind == "yarn" else {"rope_type": "linear", "factor": factor}
    if factors is None:
        return other
    try:
        scaling = scaling_of_factors(factors, theta)
    except ValueError as error:
        raise fields.error(ROPE_FACTORS, str(error)) from error
    if scaling is None:
        return other
    if other is not None:
        raise fields.error(ROPE_FACTORS, f"Llama 3's scaling is not supported beside {kind} scaling by {factor}")
    return scaling_fields(scaling)


def _yarn(fields: GGUFFields, arch: str, factor: float) -> dict[str, object]:
    prefix = f"{arch}.rope.scaling"
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": fields.integer(
            f"{prefix}.original_context_length", fields.integer(f"{arch}.context_length")
        ),
        "beta_fast": fields.number(f"{prefix}.yarn_beta_fast", 32.0),
        "beta_slow": fields.number(f"{prefix}.yarn_beta_slow", 1.0),
    }
