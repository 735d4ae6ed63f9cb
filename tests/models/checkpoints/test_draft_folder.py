"""Draft models' folders: written, read back with a target, and refused where they make no sense."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_checkpoint import llama
from safetensors.torch import load_file

from draftline.models.checkpoints.draft_folder import write_draft_folder
from draftline.models.checkpoints.dummy import DummyCheckpoint
from draftline.models.checkpoints.hf_fields import hf_fields
from draftline.models.config import Llama3Scaling, ModelConfig, YarnScaling
from draftline.models.errors import ModelLoadError
from draftline.models.families import config_from_hf, weight_shapes
from draftline.models.loader import open_checkpoint, open_draft_checkpoint

LLAMA = llama(
    vocab_size=50,
    hidden_size=16,
    intermediate_size=24,
    num_layers=3,
    max_positions=64,
    rope_theta=5000.0,
    sliding_windows=(None,) * 3,
    bos_token_id=1,
    eos_token_ids=(2, 7),
)
CONFIGS = {
    "llama": LLAMA,
    "untied": replace(LLAMA, tied_embeddings=False, bos_token_id=None, eos_token_ids=()),
    "biases": replace(LLAMA, qkv_bias=True, output_bias=True, mlp_bias=True),
    "linear-rope": replace(LLAMA, rope_factor=4.0),
    "llama3-rope": replace(LLAMA, rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 32)),
    "yarn": replace(LLAMA, rope_scaling=YarnScaling(4.0, 16, 32.0, 1.0, 1.2)),
    "mistral": replace(LLAMA, family="MistralForCausalLM", sliding_windows=(12,) * 3),
    "mistral-no-window": replace(LLAMA, family="MistralForCausalLM"),
    "qwen2": replace(LLAMA, family="Qwen2ForCausalLM", qkv_bias=True, sliding_windows=(None, 9, None)),
    "qwen3": replace(LLAMA, family="Qwen3ForCausalLM", qk_norm=True),
}


def written(folder: Path, config: ModelConfig) -> dict[str, torch.Tensor]:
    """A draft of two layers for a target of this shape."""
    draft = replace(config, num_layers=2, sliding_windows=config.sliding_windows[:2])
    weights = {
        name: torch.randn(shape)
        for name, shape in weight_shapes(draft).items()
        if name not in ("model.embed_tokens.weight", "lm_head.weight")
    }
    write_draft_folder(folder, draft, weights, target="some/model", tokenizer="some/tokenizer")
    return weights


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_a_configuration_comes_back_from_its_fields(config: ModelConfig) -> None:
    assert config_from_hf(json.loads(json.dumps(hf_fields(config)))) == config


@pytest.mark.parametrize("name", ["llama", "untied", "qwen2"])
def test_a_draft_is_its_own_weights_and_the_targets_embeddings(tmp_path: Path, name: str) -> None:
    weights, target = written(tmp_path, CONFIGS[name]), DummyCheckpoint(CONFIGS[name])
    draft = open_draft_checkpoint(str(tmp_path), target)
    assert draft.config.num_layers == 2
    shared = {"model.embed_tokens.weight", *({"lm_head.weight"} if name == "untied" else ())}
    assert set(weight_shapes(draft.config)) == weights.keys() | shared
    assert load_file(tmp_path / "model.safetensors").keys() == weights.keys()
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "config.json").stat().st_mode
    for weight in weight_shapes(draft.config):
        assert weight in draft
        expected = target.tensor(weight).data if weight in shared else weights[weight].bfloat16()
        assert torch.equal(draft.tensor(weight).data, expected)
    assert "model.layers.2.mlp.up_proj.weight" not in draft


def test_a_draft_cannot_be_loaded_by_itself(tmp_path: Path) -> None:
    written(tmp_path, LLAMA)
    with pytest.raises(ModelLoadError, match=r"config\.json: draft_of: .* model\.embed_tokens\.weight .* some/model"):
        open_checkpoint(str(tmp_path))


def test_an_ordinary_folder_can_be_a_draft(tmp_path: Path) -> None:
    written(tmp_path, LLAMA)
    change_config(tmp_path, draft_of=None)
    assert open_draft_checkpoint(str(tmp_path), DummyCheckpoint(LLAMA)).config == open_checkpoint(str(tmp_path)).config


def test_a_draft_is_quantized_by_itself(tmp_path: Path) -> None:
    written(tmp_path, LLAMA)
    target, name = DummyCheckpoint(LLAMA), "model.layers.0.mlp.up_proj.weight"
    draft = open_draft_checkpoint(str(tmp_path), target, quantization="int8")
    assert draft.tensor(name).convert_to == "int8"
    assert target.tensor(name).convert_to is None
    change_config(tmp_path, draft_of=None)
    assert open_draft_checkpoint(str(tmp_path), target, quantization="fp8").tensor(name).convert_to == "fp8"
    with pytest.raises(ModelLoadError, match="quantization: 'int3' is not supported"):
        open_draft_checkpoint(str(tmp_path), target, quantization="int3")


@pytest.mark.parametrize("field", [{"vocab_size": 51}, {"hidden_size": 32}, {"tied_embeddings": False}])
def test_a_target_that_does_not_fit_is_refused(tmp_path: Path, field: dict[str, Any]) -> None:
    written(tmp_path, LLAMA)
    with pytest.raises(ModelLoadError, match=rf"config\.json: draft_of: .* {next(iter(field))} is"):
        open_draft_checkpoint(str(tmp_path), DummyCheckpoint(replace(LLAMA, **field)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("yes", "draft_of: expected an object"),
        ({"shared": ["model.embed_tokens.weight"]}, "draft_of: model: missing"),
        ({"model": "m", "shared": "all"}, "draft_of: shared: expected a list"),
        ({"model": "m", "shared": ["model.norm.weight"]}, "'model.norm.weight' cannot be shared"),
    ],
)
def test_a_malformed_field_is_one_error(tmp_path: Path, value: object, message: str) -> None:
    written(tmp_path, LLAMA)
    change_config(tmp_path, draft_of=value)
    with pytest.raises(ModelLoadError, match=message):
        open_checkpoint(str(tmp_path))
    with pytest.raises(ModelLoadError, match=message):
        open_draft_checkpoint(str(tmp_path), DummyCheckpoint(LLAMA))


def test_weights_that_are_not_the_configurations_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        write_draft_folder(tmp_path, LLAMA, {}, target="m", tokenizer="m")
    assert not list(tmp_path.iterdir())
