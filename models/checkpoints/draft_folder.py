"""A draft model's folder: an HF folder that leaves out what the draft shares with its target.

Its ``config.json`` has one additional field::

    "draft_of": {
        "model": "smollm2",                         the target's name
        "tokenizer": "smollm2",                     the model whose tokenizer both use
        "shared": ["model.embed_tokens.weight"]     the target's weights that the draft uses, by HF's names
    }

``model.safetensors`` has all other weights that the configuration implies. The vocabulary is the target's, token by
token. Such a folder is not a model by itself: `loader.open_checkpoint` rejects it, and `loader.open_draft_checkpoint`
opens it together with a target. A folder without this field can be a draft model too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor
from typing_extensions import override

from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.checkpoints.hf_fields import hf_fields
from draftline.models.checkpoints.write_file import write_file
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.families import weight_shapes
from draftline.models.hf_config import HfConfig
from draftline.models.weight_shapes import EMBEDDING, HEAD
from draftline.quant.tensor import RawTensor

DRAFT_OF = "draft_of"
"""The field of ``config.json``."""

EMBEDDINGS = (EMBEDDING, HEAD)
"""The weights that a draft may share with its target."""


@dataclass(frozen=True, slots=True)
class DraftOf:
    """A draft model's reference to its target.

    Attributes:
        model: the target's name.
        tokenizer: the model whose tokenizer both use.
        shared: names of the target's weights that the draft uses.
    """

    model: str
    tokenizer: str
    shared: tuple[str, ...]


def read_draft_of(values: Mapping[str, object], where: str) -> DraftOf | None:
    """The ``draft_of`` field of a ``config.json``, or None if it is absent.

    Args:
        values: the file's content.
        where: the file that error messages name.

    Raises:
        ModelLoadError: the field is malformed.
    """
    section = HfConfig(values, where).section(DRAFT_OF)
    if section is None:
        return None
    shared = section.strings("shared") or ()
    for name in shared:
        if name not in EMBEDDINGS:
            raise section.error("shared", f"{name!r} cannot be shared; {' and '.join(EMBEDDINGS)} can")
    model = section.text("model")
    return DraftOf(model, section.text("tokenizer", model), shared)


def write_draft_folder(
    folder: Path, config: ModelConfig, weights: Mapping[str, Tensor], *, target: str, tokenizer: str
) -> None:
    """Write a draft model that shares its target's embedding and output projection.

    Args:
        folder: created if missing; its files are overwritten.
        config: the draft's shape.
        weights: its own weights by HF's names: all that ``config`` implies but the shared ones. Saved in bfloat16.
        target: the target's name.
        tokenizer: the model whose tokenizer both use.
    """
    shared = tuple(name for name in EMBEDDINGS if name in weight_shapes(config))
    own = weight_shapes(config).keys() - set(shared)
    if own != weights.keys():
        raise ValueError(f"the configuration and the weights differ in {sorted(own ^ weights.keys())}")
    fields = hf_fields(config) | {
        "torch_dtype": "bfloat16",
        DRAFT_OF: asdict(DraftOf(target, tokenizer, shared)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    saved = {name: value.to(device="cpu", dtype=torch.bfloat16).contiguous() for name, value in weights.items()}
    write_file(folder / "config.json", (json.dumps(fields, indent=2) + "\n").encode())
    write_file(folder / "model.safetensors", save(saved, metadata={"format": "pt"}))


class SharingCheckpoint(Checkpoint):
    """A draft model's folder, completed with the weights of its target."""

    def __init__(self, own: Checkpoint, target: Checkpoint, shared: tuple[str, ...], where: str) -> None:
        """Combine the two.

        Args:
            own: the folder's weights.
            target: the target's checkpoint.
            shared: names of the target's weights that the draft uses.
            where: the file that error messages name.

        Raises:
            ModelLoadError: the draft does not fit the target.
        """
        for field in ("vocab_size", "hidden_size", "tied_embeddings"):
            mine, its = getattr(own.config, field), getattr(target.config, field)
            if mine != its:
                raise ModelLoadError(
                    f"{where}: {DRAFT_OF}: the draft shares {', '.join(shared)} with its target, but its {field} is"
                    f" {mine} and the target's {its}"
                )
        self.config = own.config
        self._own, self._target, self._shared = own, target, frozenset(shared)

    @override
    def __contains__(self, name: str) -> bool:
        return name in (self._target if name in self._shared else self._own)

    @override
    def tensor(self, name: str) -> RawTensor:
        return (self._target if name in self._shared else self._own).tensor(name)
