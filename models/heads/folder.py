"""``write_head_folder``: a head as files, in EAGLE's own format, which other engines read too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from draftline.models.checkpoints.hf_fields import hf_fields
from draftline.models.checkpoints.write_file import write_file
from draftline.models.heads.config import FLAGS, LAYER_IDS, PARALLEL_DRAFTS, HeadConfig, head_shapes
from draftline.models.weight_shapes import EMBEDDING, HEAD
from draftline.quant.fp8 import fp8_rows

_FP8_PROJECTION = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["re:.*lm_head"],
            "weights": {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": "channel"},
        }
    },
}
"""``quantization_config`` of a head with an FP8 output projection, which has a scale a row."""


def write_head_folder(
    folder: Path,
    config: HeadConfig,
    weights: Mapping[str, Tensor],
    target_ids: Tensor,
    *,
    fp8_projection: bool = False,
) -> None:
    """Write a head that takes its embedding from its target.

    Args:
        folder: created if missing; its files are overwritten.
        config: the head's shape.
        weights: its weights by the names of `head_shapes`, all but the embedding, and without an output projection that
            it takes from its target. Saved in bfloat16.
        target_ids: [draft_vocab_size], the target's token of each token that it can draft, ascending.
        fp8_projection: save the output projection in FP8, with a scale a row.
    """
    own = head_shapes(config).keys() - {EMBEDDING}
    if own != weights.keys() | (own & {HEAD}):
        raise ValueError(f"the configuration and the weights differ in {sorted(own ^ weights.keys())}")
    fields = hf_fields(config.layer) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        LAYER_IDS: list(config.target_layers),
        **{name: getattr(config, name) for name in FLAGS},
    }
    if config.parallel_drafts > 1:
        fields[PARALLEL_DRAFTS] = config.parallel_drafts
    named = {
        name.replace("model.layers.0.", "midlayer.").removeprefix("model."): value.to(
            "cpu", torch.bfloat16
        ).contiguous()
        for name, value in weights.items()
    }
    if fp8_projection:
        fields["quantization_config"] = _FP8_PROJECTION
        named[HEAD], named[f"{HEAD}_scale"] = fp8_rows(weights[HEAD].to("cpu", torch.float32))
    ids = target_ids.cpu()
    named["d2t"] = ids - torch.arange(len(ids))
    named["t2d"] = torch.zeros(config.layer.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "config.json", (json.dumps(fields, indent=2) + "\n").encode())
    write_file(folder / "model.safetensors", save(named, metadata={"format": "pt"}))
