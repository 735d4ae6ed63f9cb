"""Tiny EAGLE-3 heads: their folders in both formats, random weights, and one that is always right for its target."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from random_checkpoint import RandomCheckpoint
from safetensors.torch import save_file
from tiny import CONFIG, free_constraints
from torch import Tensor

from draftline.kernels import select_ops
from draftline.kernels.batch import KVCache
from draftline.kernels.constraints import ConstraintTable
from draftline.models.config import ModelConfig
from draftline.models.families import build_model, weight_shapes
from draftline.models.heads.checkpoint import HeadCheckpoint
from draftline.models.heads.config import HeadConfig, head_config, head_shapes
from draftline.models.heads.eagle3 import Eagle3Head
from draftline.models.model import Model
from draftline.quant.tensor import RawTensor
from draftline.spec.eagle3 import Eagle3
from draftline.spec.parallel_head import ParallelHead

CPU = torch.device("cpu")

Fields = dict[str, Any]


def head_fields(target: ModelConfig = CONFIG, **fields: Any) -> Fields:
    """A ``config.json`` of EAGLE's own format, with some fields changed."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": target.vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "draft_vocab_size": min(100, target.vocab_size),
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
    } | fields


def in_speculators_format(fields: Fields) -> Fields:
    """The same head's ``config.json`` as the speculators library writes it."""
    own = ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "norm_before_residual", "norm_before_fc")
    own += ("fc_norm", "norm_output", "target_hidden_size")
    layer = {name: value for name, value in fields.items() if name not in (*own, "architectures")}
    return {name: fields[name] for name in own if name in fields} | {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "tiny"}},
        "transformer_layer_config": layer,
    }


def random_weights(config: HeadConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random weights of a head by the names of `head_shapes`, with the two vocabulary maps."""
    weights = {}
    for name, shape in head_shapes(config).items():
        draw = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
        weight = torch.randn(shape, generator=draw) * (0.2 if len(shape) == 1 else 0.3)
        weights[name] = 1.0 + weight if name.endswith("norm.weight") or "_norm." in name else weight
    vocab, size = config.layer.vocab_size, config.draft_vocab_size
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randperm(vocab, generator=draw)[:size].sort().values
    weights["d2t"] = ids - torch.arange(size)
    weights["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, ids, True)
    return weights


def write_head(folder: Path, fields: Fields, weights: Mapping[str, Tensor]) -> Path:
    """Write a head's folder, with the tensors named as the format of ``fields`` has it."""
    folder.mkdir(parents=True, exist_ok=True)
    layer = "layers.0." if "speculators_model_type" in fields else "midlayer."
    named = {
        name.replace("model.layers.0.", layer).removeprefix("model."): value.contiguous()
        for name, value in weights.items()
    }
    save_file(named, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


class InMemory:
    """A head's weights without a file."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self._weights = weights

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def tensor(self, name: str) -> RawTensor:
        value = self._weights[name]
        return RawTensor(name, "F32", tuple(value.shape), value)


def made_head(config: HeadConfig, weights: Mapping[str, Tensor], kernels: str = "auto") -> Eagle3Head:
    """A head on the CPU in float32, with ``kernels`` as `EngineConfig` has them."""
    ids = torch.arange(config.draft_vocab_size) + weights["d2t"]
    checkpoint = HeadCheckpoint(config, InMemory(config.layer, weights), ids)
    return Eagle3Head(checkpoint, select_ops(CPU, kernels), torch.float32, CPU)


@functools.cache
def tiny_head(seed: int = 0, target: ModelConfig = CONFIG, **fields: Any) -> Eagle3Head:
    """A random head, whose drafts are hardly ever right; all engines' in common, which take turns."""
    config = head_config(head_fields(target, **fields), "tiny", target)
    return made_head(config, random_weights(config, seed))


def eagle3(
    head: Eagle3Head,
    drafts: int,
    *,
    num_blocks: int = 64,
    block_size: int = 8,
    constraints: ConstraintTable | None = None,
) -> Eagle3:
    """A drafter with a head of either kind."""
    layer = head.config.layer
    cache = KVCache.allocate(
        layer.num_layers, num_blocks, block_size, layer.num_kv_heads, layer.head_dim, dtype=torch.float32, device=CPU
    )
    constraints = constraints or free_constraints(vocab=layer.vocab_size)
    kind = ParallelHead if head.config.parallel_drafts > 1 else Eagle3
    return kind(head, cache, select_ops(CPU), drafts, constraints)


_NEXT_TOKEN = replace(CONFIG, tied_embeddings=False)


class _NextTokenWeights(RandomCheckpoint):
    """A target whose layers add nothing: its next token depends on the newest one alone."""

    def tensor(self, name: str) -> RawTensor:
        raw = super().tensor(name)
        added = name.endswith(("o_proj.weight", "down_proj.weight"))
        return replace(raw, data=torch.zeros_like(raw.data)) if added else raw


@functools.cache
def next_token_target() -> Model:
    """A target that `right_head` always guesses right."""
    weights = _NextTokenWeights(_NEXT_TOKEN, std=0.3)
    return build_model(weights, _NEXT_TOKEN, select_ops(CPU), torch.float32, CPU)


@functools.cache
def right_head(draft_vocab: int = CONFIG.vocab_size) -> Eagle3Head:
    """The head that computes what `next_token_target` does, for the first ``draft_vocab`` tokens; in common like `tiny_head`.

    Biases make each entry attend to itself alone, values and outputs pass its token's embedding on, and everything else,
    the norm of hidden states included, adds nothing.
    """
    fields = head_fields(
        _NEXT_TOKEN,
        draft_vocab_size=draft_vocab,
        attention_bias=True,
        num_key_value_heads=4,
        rms_norm_eps=1e-12,
        norm_before_residual=True,
    )
    config = head_config(fields, "right", _NEXT_TOKEN)
    target = _NextTokenWeights(_NEXT_TOKEN, std=0.3)
    hidden = config.layer.hidden_size
    weights = {name: torch.zeros(shape) for name, shape in head_shapes(config).items()}
    for name in ("input_layernorm", "post_attention_layernorm"):
        weights[f"model.layers.0.{name}.weight"] += 1.0
    attention = "model.layers.0.self_attn."
    for name in ("q_proj", "k_proj"):
        weights[f"{attention}{name}.bias"] += 30.0
    weights[f"{attention}v_proj.weight"][:, :hidden] = torch.eye(hidden)
    weights[f"{attention}o_proj.weight"] = torch.eye(hidden)
    weights["model.embed_tokens.weight"] = target.tensor("model.embed_tokens.weight").data
    weights["model.norm.weight"] = target.tensor("model.norm.weight").data
    weights["lm_head.weight"] = target.tensor("lm_head.weight").data[:draft_vocab]
    weights["d2t"] = torch.zeros(draft_vocab, dtype=torch.int64)
    assert weight_shapes(_NEXT_TOKEN)["lm_head.weight"] == (_NEXT_TOKEN.vocab_size, hidden)
    return made_head(config, weights)
