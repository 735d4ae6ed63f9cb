"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values (https://arxiv.org/abs/2407.10671)."""

from __future__ import annotations

from draftline.models.config import ModelConfig
from draftline.models.hf_config import HfConfig, decoder_config, qwen_windows


def qwen2_config(hf: HfConfig) -> ModelConfig:
    """Qwen2: the biases are always there; windows in the layers that config.json says."""
    return decoder_config(
        hf,
        family="Qwen2ForCausalLM",
        sliding_windows=qwen_windows(hf),
        qkv_bias=True,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
    )
