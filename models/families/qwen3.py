"""Qwen3 (dense): queries and keys are RMS-normalised per head before rotation (https://arxiv.org/abs/2505.09388)."""

from __future__ import annotations

from draftline.models.config import ModelConfig
from draftline.models.hf_config import HfConfig, decoder_config, qwen_windows


def qwen3_config(hf: HfConfig) -> ModelConfig:
    """Qwen3: head size 128 unless config.json says otherwise, whatever the width and the number of heads."""
    bias = hf.flag("attention_bias", False)
    return decoder_config(
        hf,
        family="Qwen3ForCausalLM",
        sliding_windows=qwen_windows(hf),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=False,
        qk_norm=True,
        default_head_dim=128,
    )
