"""Llama (2, 3, SmolLM2, …) and Mistral, which is Llama with a sliding window.

Llama 2: https://arxiv.org/abs/2307.09288, Llama 3: https://arxiv.org/abs/2407.21783,
Mistral 7B: https://arxiv.org/abs/2310.06825.
"""

from __future__ import annotations

from draftline.models.config import ModelConfig
from draftline.models.hf_config import FULL, HfConfig, decoder_config, windows_by_type


def llama_config(hf: HfConfig) -> ModelConfig:
    """Llama: full attention; ``attention_bias`` and ``mlp_bias`` give every projection of theirs a bias."""
    bias = hf.flag("attention_bias", False)
    return decoder_config(
        hf,
        family="LlamaForCausalLM",
        sliding_windows=(None,) * hf.integer("num_hidden_layers"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=hf.flag("mlp_bias", False),
        qk_norm=False,
    )


def mistral_config(hf: HfConfig) -> ModelConfig:
    """Mistral: no biases, one window for all layers; 4096 where config.json leaves it out, none where it is null."""
    window, layers = hf.window(4096), hf.integer("num_hidden_layers")
    windows = (window,) * layers
    types = hf.strings("layer_types")
    if types is not None and windows_by_type(hf, types, layers, window) != windows:
        raise hf.error(
            "layer_types", f"{FULL!r} is not supported beside sliding_window = {window}, which is every layer's"
        )
    return decoder_config(
        hf,
        family="MistralForCausalLM",
        sliding_windows=windows,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
    )
