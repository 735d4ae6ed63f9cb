"""What an HF config.json says, and what it may not say."""

from __future__ import annotations

import json

import pytest
import transformers

from draftline.models.config import ModelConfig, RopeScaling
from draftline.models.errors import ModelLoadError
from draftline.models.families import FAMILIES, config_from_hf

LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def read(**fields: object) -> ModelConfig:
    return config_from_hf(LLAMA | fields)


def test_what_config_json_leaves_out_is_what_transformers_assumes() -> None:
    assert read() == ModelConfig(
        family="LlamaForCausalLM",
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        max_positions=512,
        norm_eps=1e-6,
        rope_theta=10_000.0,
        rope_scaling=None,
        sliding_windows=(None, None),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        tied_embeddings=False,
        bos_token_id=None,
        eos_token_ids=(),
    )


def test_every_family_reads_what_transformers_writes() -> None:
    classes = {
        "LlamaForCausalLM": transformers.LlamaConfig,
        "MistralForCausalLM": transformers.MistralConfig,
        "Qwen2ForCausalLM": transformers.Qwen2Config,
        "Qwen3ForCausalLM": transformers.Qwen3Config,
    }
    assert set(classes) == set(FAMILIES)
    for architecture, make in classes.items():
        hf = json.loads(make(architectures=[architecture]).to_json_string(use_diff=False))
        config = config_from_hf(hf)
        assert config.family == architecture
        assert len(config.sliding_windows) == config.num_layers == hf["num_hidden_layers"]
        assert config.rope_theta == hf["rope_parameters"]["rope_theta"]


@pytest.mark.parametrize(("value", "ids"), [(7, (7,)), ([7, 9], (7, 9)), (None, ())])
def test_end_of_sequence_is_one_id_or_several(value: object, ids: tuple[int, ...]) -> None:
    assert read(eos_token_id=value).eos_token_ids == ids


def test_heads() -> None:
    assert read(num_key_value_heads=2).num_kv_heads == 2
    assert read(head_dim=32).head_dim == 32
    assert read(head_dim=None).head_dim == 16
    assert read(architectures=["Qwen3ForCausalLM"]).head_dim == 128


def test_biases() -> None:
    llama = read(attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias) == (True, True, True)
    qwen2 = read(architectures=["Qwen2ForCausalLM"])
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.mlp_bias) == (True, False, False)
    assert read(architectures=["Qwen3ForCausalLM"]).qk_norm


SCALING = {"factor": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}
SCALED = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=128)


@pytest.mark.parametrize(
    ("fields", "theta", "scaling"),
    [
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **SCALING}}, 5e5, SCALED),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **SCALING}}, 5e5, SCALED),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6, None),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6, **SCALING}}, 1e6, SCALED),
    ],
)
def test_rope_in_old_and_new_spelling(fields: dict[str, object], theta: float, scaling: RopeScaling | None) -> None:
    config = read(**fields)
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"architectures": ["MistralForCausalLM"]}, (4096, 4096)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, (None, None)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 99}, (99, 99)),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 99}, (None, None)),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 99, "use_sliding_window": True}, (None, None)),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 99,
                "use_sliding_window": True,
                "max_window_layers": 1,
            },
            (None, 99),
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "sliding_window": 99,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (99, None),
        ),
    ],
)
def test_sliding_windows(fields: dict[str, object], windows: tuple[int | None, ...]) -> None:
    assert read(**fields).sliding_windows == windows


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": None}, r"config\.json: architectures: missing"),
        (
            {"architectures": ["GPT2LMHeadModel"]},
            r"architectures: 'GPT2LMHeadModel' is not supported; LlamaForCausalLM, MistralForCausalLM, Qwen2.*Qwen3.* are",
        ),
        ({"vocab_size": None}, "vocab_size: missing"),
        ({"hidden_size": "64"}, "hidden_size: expected an integer of at least 1, got '64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected an integer of at least 1, got 0"),
        ({"num_attention_heads": True}, "num_attention_heads: expected an integer"),
        ({"num_attention_heads": 5}, "hidden_size: 64 is not a multiple of num_attention_heads = 5"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide num_attention_heads = 4"),
        ({"head_dim": 15}, "head_dim: 15 is odd"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported; only 'silu' is"),
        ({"rms_norm_eps": 0}, "rms_norm_eps: expected a positive number, got 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: expected true or false, got 'yes'"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id: expected a token id or a list of token ids"),
        ({"rope_scaling": "llama3"}, "rope_scaling: expected an object, got 'llama3'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling: rope_type: 'yarn' is not supported; 'default' and"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters: rope_type: 'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling: low_freq_factor: missing"),
        ({"rope_parameters": {"full_attention": {}}}, "full_attention: rotary parameters by layer type"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor: 0\.5 is not supported"),
        (
            {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True, "layer_types": ["full_attention"]},
            "layer_types: has 1 entries for 2 layers",
        ),
        (
            {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["linear_attention", "full_attention"]},
            "layer_types: 'linear_attention' is not supported",
        ),
        (
            {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["sliding_attention", "full_attention"]},
            "layer_types: names 'sliding_attention' while use_sliding_window is false",
        ),
    ],
)
def test_errors_name_the_field(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read(**fields)
