"""A ModelConfig as the fields of an HF ``config.json``: the inverse of `families.config_from_hf`."""

from __future__ import annotations

from draftline.models.config import Llama3Scaling, ModelConfig, RopeScaling, YarnScaling
from draftline.models.families import FAMILIES


def hf_fields(config: ModelConfig) -> dict[str, object]:
    """The fields that ``config_from_hf`` reads as ``config``."""
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_factor != 1.0:
        rope |= {"rope_type": "linear", "factor": config.rope_factor}
    if config.rope_scaling is not None:
        rope |= scaling_fields(config.rope_scaling)
    windows = config.sliding_windows
    window = next((size for size in windows if size is not None), None)
    return {
        "architectures": [config.family],
        "model_type": FAMILIES[config.family].model_types[0],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": rope,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "layer_types": ["full_attention" if size is None else "sliding_attention" for size in windows],
        "tie_word_embeddings": config.tied_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }


def scaling_fields(scaling: RopeScaling) -> dict[str, object]:
    """The fields of a ``rope_scaling``."""
    fields = {"factor": scaling.factor, "original_max_position_embeddings": scaling.original_max_positions}
    match scaling:
        case Llama3Scaling(low_freq_factor=low, high_freq_factor=high):
            return {"rope_type": "llama3", **fields, "low_freq_factor": low, "high_freq_factor": high}
        case YarnScaling(beta_fast=fast, beta_slow=slow, magnitude=magnitude):
            return {"rope_type": "yarn", **fields, "beta_fast": fast, "beta_slow": slow, "attention_factor": magnitude}
