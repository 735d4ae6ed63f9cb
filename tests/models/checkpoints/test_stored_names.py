"""The names under which checkpoints store GPT-2 and Gemma 3, and the errors of tensors that do not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.errors import ModelLoadError
from draftline.models.families import config_from_hf, weight_shapes
from draftline.models.loader import open_checkpoint

GPT2: dict[str, object] = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 50,
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "n_inner": 12,
    "n_positions": 20,
}
GEMMA3: dict[str, object] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "vocab_size": 50,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "tie_word_embeddings": False,
    },
    "tie_word_embeddings": False,
}

GPT2_MODULES = {
    "model.embed_tokens": "wte",
    "model.embed_positions": "wpe",
    "model.norm": "ln_f",
    **{
        f"model.layers.{layer}.{ours}": f"h.{layer}.{theirs}"
        for layer in range(2)
        for ours, theirs in {
            "input_layernorm": "ln_1",
            "self_attn.qkv_proj": "attn.c_attn",
            "self_attn.o_proj": "attn.c_proj",
            "post_attention_layernorm": "ln_2",
            "mlp.up_proj": "mlp.c_fc",
            "mlp.down_proj": "mlp.c_proj",
        }.items()
    },
}


def weights(hf: dict[str, object]) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=draw) for name, shape in weight_shapes(config_from_hf(hf)).items()}


def huggingface(name: str, value: Tensor) -> tuple[str, Tensor]:
    module, kind = name.rsplit(".", 1)
    return f"{GPT2_MODULES[module]}.{kind}", value.t() if "_proj.weight" in name else value


def with_prefix(name: str, value: Tensor) -> tuple[str, Tensor]:
    name, value = huggingface(name, value)
    return f"transformer.{name}", value


def openai(name: str, value: Tensor) -> tuple[str, Tensor]:
    """As in the TensorFlow checkpoint: ``model/h0/attn/c_attn/w``, a convolution of width 1."""
    module, kind = name.rsplit(".", 1)
    path = re.sub(r"^h/(\d+)", r"h\1", GPT2_MODULES[module].replace(".", "/"))
    if "embed" in name:
        return f"model/{path}", value
    if "norm" in name:
        return f"model/{path}/{'g' if kind == 'weight' else 'b'}", value
    return (f"model/{path}/w", value.t()[None]) if kind == "weight" else (f"model/{path}/b", value)


def open_written(folder: Path, hf: dict[str, object], tensors: dict[str, Tensor]) -> Checkpoint:
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(hf))
    return open_checkpoint(str(folder))


@pytest.mark.parametrize("rename", [huggingface, with_prefix, openai])
def test_gpt2_by_every_set_of_names(tmp_path: Path, rename: Callable[[str, Tensor], tuple[str, Tensor]]) -> None:
    expected = weights(GPT2)
    stored = dict(rename(name, value) for name, value in expected.items())
    assert not stored.keys() & expected.keys()
    # Old files have the causal masks as well, under names that look like a bias.
    stored |= {"h.0.attn.bias": torch.ones(1, 1, 20, 20), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    checkpoint = open_written(tmp_path, GPT2, stored)
    for name, value in expected.items():
        assert name in checkpoint
        raw = checkpoint.tensor(name)
        assert (raw.name, raw.format, raw.shape) == (name, "F32", tuple(value.shape))
        assert torch.equal(raw.data, value)


@pytest.mark.parametrize(
    ("name", "shape", "needed"),
    [
        ("transformer.h.1.attn.c_attn.weight", (24, 8), r"\[24, 8\], but the configuration needs \[8, 24\]"),
        ("h.0.mlp.c_fc.bias", (8,), r"\[8\], but the configuration needs \[12\]"),
        ("model/wpe", (21, 8), r"\[21, 8\], but the configuration needs \[20, 8\]"),
        ("model/h1/attn/c_proj/w", (2, 8, 8), r"\[2, 8, 8\], but the configuration needs \[8, 8\]"),
    ],
)
def test_a_wrong_shape_is_an_error_that_names_the_tensor_as_the_file_does(
    tmp_path: Path, name: str, shape: tuple[int, ...], needed: str
) -> None:
    checkpoint = open_written(tmp_path, GPT2, {name: torch.zeros(shape)})
    (ours,) = (weight for weight in weight_shapes(checkpoint.config) if weight in checkpoint)
    with pytest.raises(ModelLoadError, match=rf"model\.safetensors: {re.escape(name)}: has shape {needed}"):
        checkpoint.tensor(ours)


def test_one_weight_under_two_names_is_refused(tmp_path: Path) -> None:
    tensors = {"wte.weight": torch.zeros(50, 8), "transformer.wte.weight": torch.zeros(50, 8)}
    with pytest.raises(ModelLoadError, match=r"wte\.weight: is the same weight as (transformer\.)?wte\.weight"):
        open_written(tmp_path, GPT2, tensors)


@pytest.mark.parametrize(
    "prefixes", [("", ""), ("language_model.model.", "language_model."), ("model.language_model.", "")]
)
def test_gemma3_by_itself_and_beside_a_vision_tower(tmp_path: Path, prefixes: tuple[str, str]) -> None:
    inner, outer = prefixes
    expected = weights(GEMMA3)
    stored = {
        (inner + name.removeprefix("model.") if inner and name.startswith("model.") else outer + name): value
        for name, value in expected.items()
    }
    stored |= {"vision_tower.vision_model.post_layernorm.weight": torch.ones(3), "model.vision_tower.x": torch.ones(3)}
    checkpoint = open_written(tmp_path, GEMMA3, stored)
    for name, value in expected.items():
        assert torch.equal(checkpoint.tensor(name).data, value)
