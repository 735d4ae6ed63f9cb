"""Reading an HF config.json: supported and rejected fields."""

from __future__ import annotations

import json
import math

import pytest
import transformers

from draftline.models.config import Llama3Scaling, ModelConfig, RopeScaling, YarnScaling
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
        "GPT2LMHeadModel": transformers.GPT2Config,
        "Gemma3ForCausalLM": transformers.Gemma3TextConfig,
        "Gemma3ForConditionalGeneration": transformers.Gemma3Config,
        "LlamaForCausalLM": transformers.LlamaConfig,
        "MistralForCausalLM": transformers.MistralConfig,
        "Qwen2ForCausalLM": transformers.Qwen2Config,
        "Qwen3ForCausalLM": transformers.Qwen3Config,
    }
    assert set(classes) == set(FAMILIES)
    for architecture, make in classes.items():
        hf = make(architectures=[architecture])
        config = config_from_hf(json.loads(hf.to_json_string(use_diff=False)))
        text = hf.get_text_config()
        assert FAMILIES[config.family].build is FAMILIES[architecture].build
        assert len(config.sliding_windows) == config.num_layers == text.num_hidden_layers
        assert (config.num_heads, config.hidden_size) == (text.num_attention_heads, text.hidden_size)
        assert (config.vocab_size, config.max_positions) == (text.vocab_size, text.max_position_embeddings)
        assert config.tied_embeddings == hf.tie_word_embeddings


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]
)
def test_rope_theta_is_read(architecture: str) -> None:
    assert read(architectures=[architecture], rope_parameters={"rope_theta": 7e5}).rope_theta == 7e5


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
SCALED = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=128)


@pytest.mark.parametrize(
    ("fields", "theta", "scaling"),
    [
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **SCALING}}, 5e5, SCALED),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **SCALING}}, 5e5, SCALED),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6, None),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6, **SCALING}}, 1e6, SCALED),
        (
            {
                "rope_scaling": {"rope_type": "llama3", **SCALING},
                "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6, **SCALING},
            },
            1e6,
            SCALED,
        ),
        (
            {
                "rope_scaling": {"rope_type": "llama3", **SCALING, "original_max_position_embeddings": None},
                "original_max_position_embeddings": 128,
            },
            1e4,
            SCALED,
        ),
    ],
)
def test_rope_in_old_and_new_spelling(fields: dict[str, object], theta: float, scaling: RopeScaling | None) -> None:
    config = read(**fields)
    assert (config.rope_theta, config.rope_factor, config.rope_scaling) == (theta, 1.0, scaling)


@pytest.mark.parametrize(
    ("more", "magnitude"),
    [
        ({}, 1 + 0.1 * math.log(4)),
        ({"attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2}, 1.5),
        ({"mscale": 0.5, "mscale_all_dim": 1.0}, (1 + 0.05 * math.log(4)) / (1 + 0.1 * math.log(4))),
    ],
)
def test_yarn_extends_the_context(more: dict[str, float], magnitude: float) -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, **more}
    for stated, longest in ((128, 512), (4096, 4096)):  # Qwen's config.json has the context from before
        config = read(max_position_embeddings=stated, rope_scaling=yarn)
        fast, slow = more.get("beta_fast", 32.0), more.get("beta_slow", 1.0)
        assert config.rope_scaling == YarnScaling(4.0, 128, fast, slow, pytest.approx(magnitude))
        assert config.max_positions == longest


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 1e5, "rope_scaling": {"type": "linear", "factor": 4}},  # deepseek-coder-6.7b
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0}},
    ],
    ids=["old", "new"],
)
def test_linear_rope_in_old_and_new_spelling(fields: dict[str, object]) -> None:
    config = read(**fields)
    assert (config.rope_theta, config.rope_factor, config.rope_scaling) == (1e5, 4.0, None)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"architectures": ["MistralForCausalLM"]}, (4096, 4096)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, (None, None)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 99}, (99, 99)),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 99, "layer_types": ["sliding_attention"] * 2},
            (99, 99),
        ),
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
            {"architectures": ["MambaForCausalLM"]},
            r"architectures: 'MambaForCausalLM' is not supported; GPT2.*, LlamaForCausalLM, MistralForCausalLM, .*Qwen3.* are",
        ),
        (
            {"model_type": "granite", "attention_multiplier": 0.5},
            r"config\.json: model_type: 'granite' does not go with LlamaForCausalLM, which is 'llama'",
        ),
        ({"is_causal": False}, r"config\.json: is_causal: false is not supported"),
        ({"text_config": {"is_causal": False}}, r"config\.json: text_config: is_causal: false is not supported"),
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
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling: factor: missing"),
        ({"rope_scaling": {"type": "yarn", "factor": 0.5}}, r"rope_scaling: factor: 0\.5 is below 1"),
        ({"rope_scaling": {"type": "yarn", "factor": 4, "beta_slow": 32}}, r"beta_fast: 32\.0 is not above beta_slow"),
        ({"rope_scaling": {"type": "yarn", "factor": 4, "truncate": False}}, "truncate: false is not supported"),
        ({"rope_scaling": {"type": "yarn", "factor": 4, "mscale": 1.0}}, "mscale: has a meaning only together with"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters: rope_type: 'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling: low_freq_factor: missing"),
        ({"rope_parameters": {"full_attention": {}}}, "full_attention: rotary parameters by layer type"),
        (
            {"rope_scaling": {"rope_type": "yarn"}, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            r"config\.json: rope_scaling: differs from rope_parameters",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", **SCALING}, "original_max_position_embeddings": 64},
            r"config\.json: original_max_position_embeddings: 64, but the rotary parameters have 128",
        ),
        (
            {
                "architectures": ["MistralForCausalLM"],
                "sliding_window": 99,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            r"config\.json: layer_types: 'full_attention' is not supported beside sliding_window = 99",
        ),
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


GEMMA3: dict[str, object] = {
    "architectures": ["Gemma3ForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
}


def gemma3(**fields: object) -> ModelConfig:
    return config_from_hf(GEMMA3 | fields)


def test_gemma3_as_its_first_checkpoints_write_it() -> None:
    """gemma-3-4b-it's config.json, with its fields and omissions."""
    config = config_from_hf(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "eos_token_id": [1, 106],
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
        }
    )
    assert config == ModelConfig(
        family="Gemma3ForCausalLM",
        vocab_size=262_208,
        hidden_size=2560,
        intermediate_size=10240,
        num_layers=34,
        num_heads=8,
        num_kv_heads=4,
        head_dim=256,
        max_positions=131_072,
        norm_eps=1e-6,
        rope_theta=1e6,
        rope_scaling=None,
        sliding_windows=tuple(None if layer in (5, 11, 17, 23, 29) else 1024 for layer in range(34)),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=True,
        tied_embeddings=True,
        bos_token_id=2,
        eos_token_ids=(1, 106),
        local_rope_theta=1e4,
        rope_factor=8.0,
        attention_scale=1 / 16,
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_local_base_freq": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 4}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            }
        },
    ],
    ids=["old", "new"],
)
def test_gemma3_rope_in_old_and_new_spelling(fields: dict[str, object]) -> None:
    config = gemma3(**fields)
    assert (config.rope_theta, config.rope_factor, config.local_rope_theta) == (5e5, 4.0, 500.0)


def test_gemma3_windows_and_caps() -> None:
    assert gemma3().sliding_windows == (4096,) * 5 + (None,) + (4096,) * 2
    assert gemma3(sliding_window=9, sliding_window_pattern=3).sliding_windows == (9, 9, None, 9, 9, None, 9, 9)
    types = ["full_attention", "sliding_attention"] * 4
    assert gemma3(layer_types=types, sliding_window=9).sliding_windows == (None, 9) * 4
    assert gemma3(layer_types=["full_attention"] * 8, sliding_window=None).sliding_windows == (None,) * 8
    assert (gemma3().attention_soft_cap, gemma3().logits_soft_cap) == (0.0, 0.0)
    config = gemma3(attn_logit_softcapping=50.0, final_logit_softcapping=30.0, query_pre_attn_scalar=64)
    assert (config.attention_soft_cap, config.logits_soft_cap, config.score_scale) == (50.0, 30.0, 0.125)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_activation": "gelu"}, "hidden_activation: 'gelu' is not supported"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention: true is not supported"),
        ({"sliding_window": None}, "sliding_window: missing"),
        ({"layer_types": ["full_attention"]}, "layer_types: has 1 entries for 8 layers"),
        ({"layer_types": ["mamba"] * 8}, "layer_types: 'mamba' is not supported"),
        ({"num_attention_heads": 5}, "num_key_value_heads: 4 does not divide"),
        ({"head_dim": 7}, "head_dim: 7 is odd"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling: rope_type: 'yarn' is not supported"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters: rope_theta: is expected in full_attention and"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "rope_parameters: sliding_attention: rope_type: 'linear' is not supported",
        ),
        (
            {
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "rope_parameters": {"full_attention": {"rope_type": "default"}},
            },
            "rope_scaling: differs from rope_parameters",
        ),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping: expected a positive number"),
    ],
)
def test_what_gemma3_cannot_do_here_is_refused_by_name(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        gemma3(**fields)


def test_gpt2_leaves_everything_out() -> None:
    config = config_from_hf({"architectures": ["GPT2LMHeadModel"]})
    assert (config.num_layers, config.hidden_size, config.intermediate_size, config.num_heads) == (12, 768, 3072, 12)
    assert (config.vocab_size, config.max_positions, config.head_dim) == (50257, 1024, 64)
    assert (config.norm_eps, config.score_scale, config.tied_embeddings) == (1e-5, 0.125, True)


def test_gpt2_has_two_names_for_its_sizes() -> None:
    sizes = {"hidden_size": 48, "num_attention_heads": 6, "num_hidden_layers": 3, "max_position_embeddings": 99}
    config = config_from_hf({"architectures": ["GPT2LMHeadModel"], **sizes})
    assert (config.hidden_size, config.num_heads, config.num_layers, config.max_positions) == tuple(sizes.values())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation_function": "relu"}, "activation_function: 'relu' is not supported; gelu_new and"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: true is not supported"),
        ({"add_cross_attention": True}, "add_cross_attention: true is not supported"),
        ({"n_embd": 100}, "n_embd: 100 is not an even multiple of n_head = 12"),
        ({"n_layer": "twelve"}, "n_layer: expected an integer"),
        ({"n_head": 12, "num_attention_heads": 6}, "num_attention_heads: 6, but n_head is 12"),
    ],
)
def test_what_gpt2_cannot_do_here_is_refused_by_name(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        config_from_hf({"architectures": ["GPT2LMHeadModel"]} | fields)
