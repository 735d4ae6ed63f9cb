"""Small models with random weights whose shapes exercise many branches of the kernels."""

from __future__ import annotations

import json
import math
from pathlib import Path

from byte_tokenizer import VOCAB, write_byte_tokenizer
from random_checkpoint import RandomCheckpoint
from safetensors.torch import save_file

from draftline.models.families import config_from_hf, weight_shapes

MAX_MODEL_LEN = 768

_LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": MAX_MODEL_LEN,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 256,
}
SHAPES: dict[str, dict[str, object]] = {
    # Little of everything.
    "llama-64": _LLAMA,
    # Sizes that are no powers of two, three queries to a key: SmolLM2's layers.
    "llama-576": _LLAMA
    | {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
    },
    # As many keys as queries, an output projection of its own, a head of its own.
    "llama-1024": _LLAMA
    | {
        "hidden_size": 1024,
        "intermediate_size": 1408,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    # Queries and keys are normalised; eight queries to a key.
    "qwen3-256": _LLAMA
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    # Biases before attention.
    "qwen2-128": _LLAMA | {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 128, "head_dim": None},
    # A window on every layer, which begins inside of a part of the keys.
    "mistral-256": _LLAMA
    | {
        "architectures": ["MistralForCausalLM"],
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "sliding_window": 300,
    },
    # Windows on some layers, soft caps, a head of 256, GeGLU.
    "gemma3-128": {
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "max_position_embeddings": MAX_MODEL_LEN,
        "sliding_window": 40,
        "sliding_window_pattern": 2,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 10.0,
        "eos_token_id": 256,
    },
    # Layer norms, learned positions, biases everywhere.
    "gpt2-192": {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": VOCAB,
        "n_embd": 192,
        "n_layer": 2,
        "n_head": 3,
        "n_positions": MAX_MODEL_LEN,
        "eos_token_id": 256,
    },
}


def write_model(folder: Path, shape: str) -> None:
    """Write a model of this shape with random weights, and a tokenizer of bytes.

    The weights are large enough that every layer counts: another last bit anywhere reaches the log-probabilities.
    """
    config = config_from_hf(SHAPES[shape])
    checkpoint = RandomCheckpoint(config, std=1.7 / math.sqrt(config.hidden_size))
    save_file({name: checkpoint.tensor(name).data for name in weight_shapes(config)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(SHAPES[shape]))
    write_byte_tokenizer(folder)
