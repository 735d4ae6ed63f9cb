"""HF folders: every tensor comes back bit for bit, and every kind of damage is one clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from draftline.kernels.reference.ops import ReferenceOps
from draftline.models.errors import ModelLoadError
from draftline.models.families import build_model, weight_shapes
from draftline.models.loader import open_checkpoint

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def write_config(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG))


def weights(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Random weights of the folder's model, by HF name."""
    config = open_checkpoint(str(folder), load_format="dummy").config
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(s, generator=generator).to(dtype) for name, s in weight_shapes(config).items()}


def write_single(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    write_config(folder)
    tensors = weights(folder, dtype)
    save_file(tensors, folder / "model.safetensors")
    return tensors


def write_sharded(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Three shards and their index."""
    write_config(folder)
    tensors = weights(folder, dtype)
    weight_map = {}
    for shard in range(3):
        file = f"model-{shard + 1:05}-of-00003.safetensors"
        part = {name: tensors[name] for name in list(tensors)[shard::3]}
        save_file(part, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tensors


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("write", [write_single, write_sharded])
def test_every_tensor_comes_back_bit_for_bit(
    tmp_path: Path, write: Callable[[Path, torch.dtype], dict[str, Tensor]], dtype: str
) -> None:
    tensors = write(tmp_path, DTYPES[dtype])
    checkpoint = open_checkpoint(str(tmp_path))
    for name, tensor in tensors.items():
        raw = checkpoint.tensor(name)
        assert (raw.name, raw.format, raw.shape, raw.data.dtype) == (name, dtype, tuple(tensor.shape), DTYPES[dtype])
        assert torch.equal(raw.data, tensor)
        assert name in checkpoint
    assert "model.layers.2.mlp.up_proj.weight" not in checkpoint


def test_a_single_file_comes_before_shards_that_are_left(tmp_path: Path) -> None:
    write_sharded(tmp_path, torch.float32)
    write_single(tmp_path, torch.float16)
    assert open_checkpoint(str(tmp_path)).tensor("model.norm.weight").format == "F16"


def test_other_dtypes_pass_through_by_their_name(tmp_path: Path) -> None:
    write_config(tmp_path)
    quantized = {
        "model.norm.weight": torch.ones(16).to(torch.float8_e4m3fn),
        "model.layers.0.mlp.up_proj.weight_scale": torch.ones(3, dtype=torch.int8),
    }
    save_file(quantized, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.tensor("model.norm.weight").format == "F8_E4M3"
    assert checkpoint.tensor("model.layers.0.mlp.up_proj.weight_scale").format == "I8"


def test_a_path_to_the_config_means_its_folder(tmp_path: Path) -> None:
    write_single(tmp_path)
    assert "lm_head.weight" in open_checkpoint(str(tmp_path / "config.json"))


def _truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def _edit_index(folder: Path, name: str, file: object) -> None:
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"][name] = file
    index.write_text(json.dumps(content))


FIRST_SHARD = "model-00001-of-00003.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1234\n"

DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no header": (lambda f: (f / FIRST_SHARD).write_bytes(b""), FIRST_SHARD),
    "truncated header": (lambda f: _truncate(f / FIRST_SHARD, 100), FIRST_SHARD),
    "truncated data": (lambda f: _truncate(f / FIRST_SHARD, (f / FIRST_SHARD).stat().st_size - 1), FIRST_SHARD),
    "not safetensors": (lambda f: (f / FIRST_SHARD).write_bytes(b"garbage " * 40), FIRST_SHARD),
    "shard not downloaded": (
        lambda f: (f / FIRST_SHARD).write_bytes(POINTER),
        f"{FIRST_SHARD}: is a pointer of Git LFS",
    ),
    "index not downloaded": (
        lambda f: (f / "model.safetensors.index.json").write_bytes(POINTER),
        "index.json: is a pointer of Git LFS",
    ),
    "no shard": (lambda f: (f / FIRST_SHARD).unlink(), f"{FIRST_SHARD}: no such file"),
    "not in its shard": (lambda f: _edit_index(f, "x.weight", FIRST_SHARD), f"{FIRST_SHARD}: x.weight: .*not in"),
    "shard elsewhere": (lambda f: _edit_index(f, "x.weight", "../y.safetensors"), r"x.weight: .*not a file name"),
    "shard is a number": (lambda f: _edit_index(f, "x.weight", 3), r"index.json: weight_map: x.weight: 3"),
    "index without map": (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "weight_map: missing"),
    "index is no JSON": (lambda f: (f / "model.safetensors.index.json").write_text("{"), "index.json: is not valid"),
    "index is a list": (lambda f: (f / "model.safetensors.index.json").write_text("[]"), "index.json: holds a list"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{'a"), "config.json: is not valid JSON"),
    "config lacks a field": (lambda f: (f / "config.json").write_text("{}"), "config.json: architectures: missing"),
    "config is not UTF-8": (lambda f: (f / "config.json").write_bytes(b'{"a": "\xff"}'), "config.json: cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_on_opening_and_named(tmp_path: Path, damage: str) -> None:
    write_sharded(tmp_path)
    spoil, message = DAMAGE[damage]
    spoil(tmp_path)
    with pytest.raises(ModelLoadError, match=message) as caught:
        open_checkpoint(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    tensors = write_single(tmp_path)
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(str(tmp_path))
    assert "model.norm.weight" not in checkpoint
    with pytest.raises(ModelLoadError, match=rf"{tmp_path}: model\.norm\.weight: not in this checkpoint"):
        checkpoint.tensor("model.norm.weight")


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    tensors = write_single(tmp_path)
    tensors["model.layers.1.self_attn.k_proj.weight"] = torch.zeros(8, 16)
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: .*k_proj\.weight: has shape \[8, 16\].*\[16, 16\]"):
        checkpoint.tensor("model.layers.1.self_attn.k_proj.weight")


@pytest.mark.parametrize(
    "name", ["model.layers.1.self_attn.q_proj.bias", "model.layers.0.extra.weight", "lm_head.bias"]
)
def test_a_weight_that_the_configuration_does_not_imply_is_named(tmp_path: Path, name: str) -> None:
    tensors = write_single(tmp_path)
    save_file(tensors | {name: torch.zeros(32)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=rf"model\.safetensors: {name}: the configuration implies no such tensor"):
        open_checkpoint(str(tmp_path))


def test_what_takes_no_part_in_the_model_may_be_there(tmp_path: Path) -> None:
    tensors = write_single(tmp_path)
    others = ("model.layers.2.input_layernorm.weight", "model.layers.0.self_attn.rotary_emb.inv_freq", "score.weight")
    save_file(tensors | {name: torch.zeros(4) for name in others}, tmp_path / "model.safetensors")
    assert "model.norm.weight" in open_checkpoint(str(tmp_path))


def test_an_output_projection_beside_a_tied_embedding_must_be_the_embedding(tmp_path: Path) -> None:
    tensors = write_single(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": True}))
    with pytest.raises(ModelLoadError, match=r"lm_head\.weight: differs from .*embed_tokens\.weight, though tie_word"):
        _build(tmp_path)
    save_file(
        tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, tmp_path / "model.safetensors"
    )
    _build(tmp_path)


def _build(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder))
    build_model(checkpoint, checkpoint.config, ReferenceOps(), torch.float32, torch.device("cpu"))


def test_a_folder_without_weights_says_what_it_lacks(tmp_path: Path) -> None:
    write_config(tmp_path)
    with pytest.raises(ModelLoadError, match=r"holds neither model\.safetensors nor .* pytorch_model\.bin have to be"):
        open_checkpoint(str(tmp_path))
