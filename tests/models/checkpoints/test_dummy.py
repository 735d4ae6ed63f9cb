"""Random weights: those the configuration implies and no others, the same on every load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from draftline.models.errors import ModelLoadError
from draftline.models.families import FAMILIES, weight_shapes
from draftline.models.loader import open_checkpoint
from draftline.models.parallel.checkpoint import PartialCheckpoint
from draftline.models.parallel.split import splits

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
CONFIGS: dict[str, transformers.PreTrainedConfig] = {
    "gemma3": transformers.Gemma3TextConfig(**SHAPE, head_dim=16),
    "gpt2": transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=128),
    "llama": transformers.LlamaConfig(**SHAPE),
    "llama-tied": transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama-biases": transformers.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "mistral-head-dim": transformers.MistralConfig(**SHAPE, head_dim=16),
    "qwen2": transformers.Qwen2Config(**SHAPE),
    "qwen3": transformers.Qwen3Config(**SHAPE, head_dim=16),
    "qwen3-biases": transformers.Qwen3Config(**SHAPE, head_dim=16, attention_bias=True),
}


def write(folder: Path, config: transformers.PreTrainedConfig) -> str:
    model = transformers.AutoModelForCausalLM.from_config(config)
    content = {**config.to_dict(), "architectures": [type(model).__name__]}
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_weights_are_those_of_transformers_model(tmp_path: Path, name: str) -> None:
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name])
    stored = FAMILIES[type(model).__name__].stored
    wanted = {}
    for key, value in model.state_dict().items():
        weight = stored(key)
        wanted[weight.name] = tuple((value.t() if weight.transposed else value).shape)
    if CONFIGS[name].tie_word_embeddings:
        del wanted["lm_head.weight"]
    checkpoint = open_checkpoint(write(tmp_path, CONFIGS[name]), load_format="dummy")
    assert weight_shapes(checkpoint.config) == wanted
    for key in [*wanted, "lm_head.weight", "model.layers.3.mlp.up_proj.weight"]:
        assert (key in checkpoint) == (key in wanted)
    for key, shape in wanted.items():
        raw = checkpoint.tensor(key)
        assert (raw.name, raw.format, raw.shape, tuple(raw.data.shape)) == (key, "BF16", shape, shape)
        assert raw.data.dtype == torch.bfloat16


def test_norms_are_ones_and_the_rest_is_normal(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path, CONFIGS["qwen3"]), load_format="dummy")
    assert torch.equal(checkpoint.tensor("model.layers.1.self_attn.q_norm.weight").data, torch.ones(16).bfloat16())
    data = checkpoint.tensor("model.embed_tokens.weight").data.float()
    assert data.std() == pytest.approx(0.02, rel=0.1)
    assert abs(data.mean()) < 0.002


def test_a_weight_depends_on_its_name_alone(tmp_path: Path) -> None:
    path = write(tmp_path, CONFIGS["llama"])
    first, second = (open_checkpoint(path, load_format="dummy") for _ in range(2))
    up, gate = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
    second.tensor(gate)
    assert torch.equal(first.tensor(up).data, second.tensor(up).data)
    assert not torch.equal(first.tensor(up).data, first.tensor(gate).data)


def test_weights_are_made_on_the_device_that_wants_them(tmp_path: Path) -> None:
    """A large model's random weights would take minutes on the host."""
    device = torch.device("meta")
    for options in ({}, {"quantization": "fp8"}):
        checkpoint = open_checkpoint(write(tmp_path, CONFIGS["llama"]), load_format="dummy", device=device, **options)
        part = PartialCheckpoint(checkpoint, splits(checkpoint.config, 2)[1])
        for name in weight_shapes(checkpoint.config):
            assert part.tensor(name).data.device == device


def test_what_is_not_implied_and_unknown_formats_are_errors(tmp_path: Path) -> None:
    path = write(tmp_path, CONFIGS["llama-tied"])
    with pytest.raises(ModelLoadError, match=r"lm_head\.weight: the configuration implies no such tensor"):
        open_checkpoint(path, load_format="dummy").tensor("lm_head.weight")
    with pytest.raises(ModelLoadError, match="load_format: 'pickle' is not supported"):
        open_checkpoint(path, load_format="pickle")
