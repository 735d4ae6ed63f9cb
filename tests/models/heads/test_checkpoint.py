"""Heads' folders in both formats, and those that are refused: damaged ones, and those of other targets."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_checkpoint import RandomCheckpoint, llama
from tiny_head import Fields, head_fields, in_speculators_format, random_weights, write_head
from torch import Tensor

from draftline.kernels.reference.ops import ReferenceOps
from draftline.models.errors import ModelLoadError
from draftline.models.heads.checkpoint import HeadCheckpoint, open_head
from draftline.models.heads.config import head_config, head_shapes
from draftline.models.heads.eagle3 import Eagle3Head
from draftline.models.loader import open_checkpoint

TARGET = llama(vocab_size=61, hidden_size=24, num_layers=8)
Weights = dict[str, Tensor]


def opened(folder: Path, **options: Any) -> HeadCheckpoint:
    head = open_head(str(folder), RandomCheckpoint(TARGET, std=0.3), **options)
    assert head is not None
    return head


def loaded(folder: Path) -> Eagle3Head:
    return Eagle3Head(opened(folder), ReferenceOps(), torch.float32, torch.device("cpu"))


def fields_and_weights(**fields: object) -> tuple[Fields, Weights]:
    values = head_fields(TARGET, draft_vocab_size=37, **fields)
    return values, random_weights(head_config(values, "head", TARGET))


@pytest.mark.parametrize("form", [dict, in_speculators_format], ids=["eagle", "speculators"])
def test_both_formats_are_read(tmp_path: Path, form: Callable[[Fields], Fields]) -> None:
    fields, weights = fields_and_weights(norm_before_residual=True)
    head = opened(write_head(tmp_path, form(fields), weights))
    assert head.config == head_config(fields, "head", TARGET)
    assert head.config.norm_before_residual
    assert head.config.layer.max_positions == TARGET.max_positions
    for name in head_shapes(head.config):
        assert torch.equal(head.weights.tensor(name).data, weights[name])
    assert head.target_ids.tolist() == (torch.arange(37) + weights["d2t"]).tolist()
    loaded(tmp_path)


def test_a_head_without_an_embedding_takes_its_targets(tmp_path: Path) -> None:
    fields, weights = fields_and_weights(hidden_size=TARGET.hidden_size)
    del weights["model.embed_tokens.weight"]
    head = opened(write_head(tmp_path, fields, weights))
    expected = RandomCheckpoint(TARGET, std=0.3).tensor("model.embed_tokens.weight").data
    assert torch.equal(head.weights.tensor("model.embed_tokens.weight").data, expected)
    loaded(tmp_path)


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight"])
def test_a_head_of_another_width_needs_its_own_tables(tmp_path: Path, name: str) -> None:
    fields, weights = fields_and_weights(hidden_size=32)
    del weights[name]
    write_head(tmp_path, fields, weights)
    message = f"{name}: not in this checkpoint, and the target's has 24 columns: a head with a hidden_size of 32 needs"
    with pytest.raises(ModelLoadError, match=message):
        loaded(tmp_path)


def test_a_head_of_all_tokens_needs_no_map_and_no_output_projection(tmp_path: Path) -> None:
    fields = head_fields(TARGET, draft_vocab_size=61, hidden_size=TARGET.hidden_size)
    weights = random_weights(head_config(fields, "head", TARGET))
    for name in ("d2t", "t2d", "lm_head.weight"):
        del weights[name]
    head = opened(write_head(tmp_path, fields, weights))
    assert head.target_ids.tolist() == list(range(61))
    # The target's output projection is its embedding.
    expected = RandomCheckpoint(TARGET, std=0.3).tensor("model.embed_tokens.weight").data
    assert torch.equal(head.weights.tensor("lm_head.weight").data, expected)
    loaded(tmp_path)


def test_a_flag_of_tied_embeddings_does_not_hide_the_heads_own_output_projection(tmp_path: Path) -> None:
    """As in heads of Qwen3-4B by SpecForge and AngelSlim, whose flag is their target's."""
    fields, weights = fields_and_weights(tie_word_embeddings=True)
    head = opened(write_head(tmp_path, fields, weights))
    assert torch.equal(head.weights.tensor("lm_head.weight").data, weights["lm_head.weight"])
    del weights["lm_head.weight"]
    write_head(tmp_path, fields, weights)
    message = r"config\.json: tie_word_embeddings: true is not supported for heads without lm_head\.weight"
    with pytest.raises(ModelLoadError, match=message):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "EAGLE3LlamaForCausalLM"])
def test_a_head_is_known_by_its_architecture(tmp_path: Path, name: str) -> None:
    """The field of the vocabulary may be missing: the head drafts all tokens then."""
    fields = head_fields(TARGET, architectures=[name])
    del fields["draft_vocab_size"]
    weights = random_weights(head_config(fields, "head", TARGET))
    assert opened(write_head(tmp_path, fields, weights)).config.draft_vocab_size == 61


def test_t2d_alone_is_a_map(tmp_path: Path) -> None:
    fields, weights = fields_and_weights()
    expected = (torch.arange(37) + weights.pop("d2t")).tolist()
    assert opened(write_head(tmp_path, fields, weights)).target_ids.tolist() == expected


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({"eagle_aux_hidden_state_layer_ids": None}, (2, 4, 5)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 8]}, (1, 3, 8)),
        (
            {"eagle_aux_hidden_state_layer_ids": None, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 7]}},
            (2, 4, 8),
        ),
    ],
    ids=["default", "inputs", "outputs"],
)
def test_the_targets_layers(fields: Fields, layers: tuple[int, ...]) -> None:
    assert head_config(head_fields(TARGET, **fields), "head", TARGET).target_layers == layers


def test_random_weights_in_a_heads_shape(tmp_path: Path) -> None:
    fields, _ = fields_and_weights()
    (tmp_path / "config.json").write_text(json.dumps(fields))
    head = opened(tmp_path, load_format="dummy")
    assert head.target_ids.tolist() == list(range(37))
    Eagle3Head(head, ReferenceOps(), torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("quantization", ["fp8", "int8"])
def test_projections_are_converted_on_loading(tmp_path: Path, quantization: str) -> None:
    fields, weights = fields_and_weights()
    write_head(tmp_path, fields, weights)
    head = Eagle3Head(opened(tmp_path, quantization=quantization), ReferenceOps(), torch.float32, torch.device("cpu"))
    states = torch.randn((5, 3, TARGET.hidden_size))
    exact = loaded(tmp_path).fuse(states.clone())
    assert not torch.equal(head.fuse(states.clone()), exact)
    torch.testing.assert_close(head.fuse(states.clone()), exact, atol=0.5, rtol=0.2)


@pytest.mark.parametrize("form", [dict, in_speculators_format], ids=["eagle", "speculators"])
def test_a_head_is_no_model_by_itself(tmp_path: Path, form: Callable[[Fields], Fields]) -> None:
    fields, weights = fields_and_weights()
    write_head(tmp_path, form(fields), weights)
    with pytest.raises(ModelLoadError, match=r"config\.json: this is a draft head, .* only as the draft model of its"):
        open_checkpoint(str(tmp_path))


def test_other_models_are_no_heads(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "vocab_size": 61}))
    assert open_head(str(tmp_path), RandomCheckpoint(TARGET, std=0.3)) is None
    assert open_head("smollm2-draft", RandomCheckpoint(TARGET, std=0.3)) is None


WRONG_FIELDS: dict[str, tuple[Fields, str]] = {
    "another vocabulary": ({"vocab_size": 60}, r"config\.json: vocab_size: 60, but the target's vocabulary has 61"),
    "more tokens than there are": (
        {"draft_vocab_size": 10**12},
        "draft_vocab_size: 1000000000000, but the target's vocabulary has 61",
    ),
    "another width": ({"target_hidden_size": 32}, "target_hidden_size: 32, but the target's hidden_size is 24"),
    "several layers": ({"num_hidden_layers": 2}, "num_hidden_layers: 2 is not supported for heads; 1 is"),
    "another family": ({"model_type": "mixtral"}, "model_type: 'mixtral' is not supported for heads"),
    "another algorithm": ({"speculators_model_type": "mlp"}, "speculators_model_type: 'mlp' is not supported"),
    "no hidden states": ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state: false"),
    "a layer too many": (
        {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]},
        r"eagle_aux_hidden_state_layer_ids: \[1, 2, 9\] do not ascend between 0 and the target's 8 layers",
    ),
    "layers out of order": ({"eagle_aux_hidden_state_layer_ids": [3, 2, 5]}, "do not ascend"),
    "no integers": ({"eagle_aux_hidden_state_layer_ids": ["a"]}, "expected a list of integers"),
    "a flag": ({"norm_output": 1}, "norm_output: expected true or false, got 1"),
}


@pytest.mark.parametrize("name", WRONG_FIELDS)
def test_wrong_fields_are_named(tmp_path: Path, name: str) -> None:
    fields, weights = fields_and_weights()
    wrong, message = WRONG_FIELDS[name]
    write_head(tmp_path, fields | wrong, weights)
    with pytest.raises(ModelLoadError, match=message):
        opened(tmp_path)


def shifted(weights: Weights) -> None:
    weights["d2t"] = weights["d2t"] + 61


def doubled(weights: Weights) -> None:
    weights["d2t"][1] = weights["d2t"][0] - 1


def other_marks(weights: Weights) -> None:
    weights["t2d"] = weights["t2d"].roll(1)


def wider(name: str) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        weights[name] = torch.cat((weights[name], weights[name][:1]))

    return change


def shorter(name: str) -> Callable[[Weights], None]:
    return lambda weights: weights.update({name: weights[name][:-1]})


def marked_padding(weights: Weights) -> None:
    weights["t2d"] = torch.cat((weights["t2d"], torch.ones(1, dtype=torch.bool)))


def without(name: str) -> Callable[[Weights], None]:
    return lambda weights: weights.pop(name) is None  # type: ignore[return-value]


def beside(name: str) -> Callable[[Weights], None]:
    return lambda weights: weights.update({name: torch.zeros(3, 3)})


WRONG_TENSORS: dict[str, tuple[Callable[[Weights], None], str]] = {
    "d2t beyond the vocabulary": (shifted, "d2t: names token .*, and the target's vocabulary has 61"),
    "d2t twice": (doubled, "d2t: has 36 different tokens, and draft_vocab_size is 37"),
    "d2t of another size": (wider("d2t"), r"d2t: has shape \[38\], but the configuration needs \[37\]"),
    "t2d of another vocabulary": (shorter("t2d"), r"t2d: has shape \[60\], but the configuration needs \[61\]"),
    "t2d marks padding": (marked_padding, "t2d: marks other tokens than d2t names"),
    "t2d marks others": (other_marks, "t2d: marks other tokens than d2t names"),
    "embedding of another vocabulary": (
        shorter("model.embed_tokens.weight"),
        r"embed_tokens.weight: has shape \[60, 32\], but the configuration needs \[61, 32\]",
    ),
    "fusion": (wider("fc.weight"), r"fc.weight: has shape \[33, 72\], but the configuration needs \[32, 72\]"),
    "queries": (wider("model.layers.0.self_attn.q_proj.weight"), r"midlayer.self_attn.q_proj.weight: has shape \[33"),
    "norm": (wider("model.layers.0.hidden_norm.weight"), r"midlayer.hidden_norm.weight: has shape \[33\]"),
    "output projection": (shorter("lm_head.weight"), r"lm_head.weight: has shape \[36, 32\]"),
    "no fusion": (without("fc.weight"), "fc.weight: not in this checkpoint"),
    "no layer": (without("model.layers.0.mlp.up_proj.weight"), "up_proj.weight: not in this checkpoint"),
    "a second layer": (
        beside("layers.1.mlp.up_proj.weight"),
        r"layers\.1\.mlp\.up_proj\.weight: the configuration implies no",
    ),
    "a bias": (beside("fc.bias"), r"model\.safetensors: fc\.bias: the configuration implies no such tensor"),
    "a norm that no field names": (
        beside("input_norm.weight"),
        r"input_norm\.weight: the configuration implies no such",
    ),
    "P-EAGLE": (beside("mask_hidden"), "mask_hidden: the configuration implies no such tensor"),
    "ModelOpt's parallel heads": (
        beside("parallel_draft_heads.lm_head.weight"),
        r"parallel_draft_heads\.lm_head\.weight: the configuration implies no such tensor",
    ),
}


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_wrong_tensors_are_named(tmp_path: Path, name: str) -> None:
    fields, weights = fields_and_weights()
    change, message = WRONG_TENSORS[name]
    change(weights)
    write_head(tmp_path, fields, weights)
    with pytest.raises(ModelLoadError, match=message):
        loaded(tmp_path)


TABLES = ("model.embed_tokens.weight", "lm_head.weight", "t2d")


def padded(weights: Weights, rows: int) -> Weights:
    return weights | {
        name: torch.cat((weights[name], weights[name].new_zeros((rows, *weights[name].shape[1:])))) for name in TABLES
    }


@pytest.mark.parametrize(
    ("vocab_size", "rows"), [(61, 3), (64, 3), (64, 67)], ids=["in the tables", "in the size", "in both"]
)
def test_rows_of_padding_are_cut(tmp_path: Path, vocab_size: int, rows: int) -> None:
    fields, weights = fields_and_weights()
    plain = opened(write_head(tmp_path / "plain", fields, weights))
    write_head(tmp_path / "padded", fields | {"vocab_size": vocab_size}, padded(weights, rows))
    head = opened(tmp_path / "padded", text_tokens=lambda: 59)
    assert head.config == plain.config
    assert torch.equal(head.target_ids, plain.target_ids)
    for name in head_shapes(head.config):
        assert torch.equal(head.weights.tensor(name).data, plain.weights.tensor(name).data)
    Eagle3Head(head, ReferenceOps(), torch.float32, torch.device("cpu"))


def test_a_target_may_have_more_padding_than_its_head(tmp_path: Path) -> None:
    fields = head_fields(TARGET, vocab_size=60, draft_vocab_size=60)
    weights = random_weights(head_config(fields, "head", TARGET, lambda: 59))
    del weights["d2t"], weights["t2d"]
    write_head(tmp_path, fields, weights)
    head = opened(tmp_path, text_tokens=lambda: 60)
    assert head.target_ids.tolist() == list(range(60))
    embedding = head.weights.tensor("model.embed_tokens.weight")
    assert embedding.shape == (61, 32)
    assert torch.equal(embedding.data[:60], weights["model.embed_tokens.weight"])
    assert not embedding.data[60].any()
    Eagle3Head(head, ReferenceOps(), torch.float32, torch.device("cpu"))
    with pytest.raises(ModelLoadError, match=r"config\.json: vocab_size: 60, but the target's vocabulary has 61"):
        opened(tmp_path, text_tokens=lambda: 61)


def test_a_head_of_a_padded_vocabulary_with_random_weights(tmp_path: Path) -> None:
    fields = head_fields(TARGET, vocab_size=64, draft_vocab_size=64)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    head = opened(tmp_path, load_format="dummy", text_tokens=lambda: 61)
    assert head.target_ids.tolist() == list(range(61))
    Eagle3Head(head, ReferenceOps(), torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("name", ["verifier_lm_head.weight", "layers.0.self_attn.rotary_emb.inv_freq"])
def test_tensors_that_no_head_computes_with_may_be_there(tmp_path: Path, name: str) -> None:
    fields, weights = fields_and_weights()
    loaded(write_head(tmp_path, fields, weights | {name: torch.zeros(3, 3)}))


def test_no_map_at_all(tmp_path: Path) -> None:
    fields, weights = fields_and_weights()
    del weights["d2t"], weights["t2d"]
    write_head(tmp_path, fields, weights)
    with pytest.raises(ModelLoadError, match="d2t: not in this checkpoint, though only 37 of 61 tokens are drafted"):
        loaded(tmp_path)


def test_a_target_of_another_width(tmp_path: Path) -> None:
    """The configuration says nothing of it, so the tensor does."""
    fields, weights = fields_and_weights()
    write_head(tmp_path, fields, weights)
    other = RandomCheckpoint(replace(TARGET, hidden_size=48), std=0.3)
    head = open_head(str(tmp_path), other)
    assert head is not None
    with pytest.raises(
        ModelLoadError, match=r"fc.weight: has shape \[32, 72\], but the configuration needs \[32, 144\]"
    ):
        Eagle3Head(head, ReferenceOps(), torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("left", [0, 5, 4000])
def test_a_damaged_file_is_named(tmp_path: Path, left: int) -> None:
    fields, weights = fields_and_weights()
    path = write_head(tmp_path, fields, weights) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: is damaged or no safetensors file"):
        loaded(tmp_path)
