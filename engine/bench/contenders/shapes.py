"""Shapes of public models, from their own config.json, to be run with random weights.

Speed depends on the shape, not on the values of the weights, so no checkpoint is needed to measure it. The gain of
speculative decoding does depend on the values: it is not measured with shapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftline.engine.errors import unreadable

HfConfig = dict[str, Any]
"""The fields of an HF config.json."""

SMOLLM2_135M: HfConfig = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

QWEN3_0_6B: HfConfig = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "attention_bias": False,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}

LLAMA_3_2_1B: HfConfig = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": True,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}

LLAMA_3_1_8B: HfConfig = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}

LLAMA_3_1_70B: HfConfig = LLAMA_3_1_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}

LLAMA_3_1_8B_EAGLE3: HfConfig = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}

LLAMA_3_1_8B_PARALLEL: HfConfig = LLAMA_3_1_8B_EAGLE3 | {"num_hidden_layers": 4, "parallel_drafts": 16}
"""Deeper than one that makes a pass for each draft."""

SHAPES: dict[str, HfConfig] = {
    "smollm2-135m": SMOLLM2_135M,
    "qwen3-0.6b": QWEN3_0_6B,
    "llama-3.2-1b": LLAMA_3_2_1B,
    "llama-3.1-8b": LLAMA_3_1_8B,
    "llama-3.1-70b": LLAMA_3_1_70B,
}


DRAFT_SHAPES: dict[str, HfConfig] = SHAPES | {
    "llama-3.1-8b-eagle3": LLAMA_3_1_8B_EAGLE3,
    "llama-3.1-8b-parallel": LLAMA_3_1_8B_PARALLEL,
}
"""Shapes of drafters, among them heads."""


def find_shape(name: str, shapes: Mapping[str, HfConfig] = SHAPES) -> HfConfig:
    """A shape by its name, in upper or lower case, or by the path of a config.json.

    Raises:
        ValueError: there is no such shape or file, or the file is not a config.json.
    """
    if name.lower() in shapes:
        return shapes[name.lower()]
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"shape {name!r}: no such file, and none of the shapes known by name ({', '.join(shapes)})")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"shape {name!r}: {unreadable(error)}") from error
    except ValueError as error:
        raise ValueError(f"shape {name!r}: not JSON: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("vocab_size"), int) or "model_type" not in values:
        raise ValueError(f"shape {name!r}: not the config.json of a model: it lacks model_type or vocab_size")
    return values
