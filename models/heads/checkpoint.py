"""``open_head``: an EAGLE-3 head's folder, and the map from its own small vocabulary to the target's.

A head's folder may leave out the token embedding and the output projection. They are the target's then, the
projection's rows being those of the tokens that the head can draft. Two tensors map the vocabularies: ``d2t`` has each
draft token's distance from its token of the target, and ``t2d`` marks the target's tokens that can be drafted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from draftline import quant
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.checkpoints.dummy import DummyCheckpoint
from draftline.models.checkpoints.json_file import read_json_object
from draftline.models.checkpoints.quantized import scheme_in, with_scales
from draftline.models.checkpoints.resolve import MODEL_FILES, TOKENIZER_FILES, SourceKind, resolve_model
from draftline.models.checkpoints.safetensors import SafetensorsCheckpoint
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.families.stored import StoredWeight
from draftline.models.heads.config import HeadConfig, head_config, head_shapes, is_head_config
from draftline.models.loader import converted
from draftline.models.weight_shapes import EMBEDDING, HEAD
from draftline.quant.tensor import RawTensor

_OWN_LAYER = re.compile(r"^(?:model\.)?(?:midlayer|layers\.(\d+))\.")
_OWN_TABLE = re.compile(r"^(?:model\.)?(embed_tokens|norm)\.")
_UNREAD = re.compile(r"verifier_.*|.*_scale(_inv)?|.*\.inv_freq")
"""Tensors without a part of their own in a head's arithmetic: copies of the target's, scales, and rotary frequencies.

Any other one means another network: parallel drafts, more norms, a bias."""


@dataclass(frozen=True, slots=True)
class HeadCheckpoint:
    """An opened head.

    Attributes:
        config: its shape.
        weights: its weights by the names of `head_shapes`, with those that it takes from its target.
        target_ids: [draft_vocab_size] int64, the target's token of each token that it can draft, all different.
    """

    config: HeadConfig
    weights: Checkpoint
    target_ids: Tensor


def open_head(
    model: str,
    target: Checkpoint,
    *,
    load_format: str = "auto",
    quantization: str = "auto",
    device: torch.device = torch.device("cpu"),  # noqa: B008 - it is a constant
) -> HeadCheckpoint | None:
    """Open a head for ``target``, or return None where ``model`` is no head.

    Args:
        model: see `resolve_model`.
        target: the target's checkpoint.
        load_format: ``dummy`` makes random weights, with which the first tokens are those that can be drafted.
        quantization: the format to convert the projections to; ``auto`` keeps their own.
        device: where random weights are made.

    Raises:
        ModelLoadError: a file is missing or damaged, or the head does not fit the target; the message names the tensor.
    """
    dummy = load_format == "dummy"
    source = resolve_model(model, TOKENIZER_FILES if dummy else MODEL_FILES)
    path = source.path / "config.json"
    if source.kind is not SourceKind.FOLDER or not path.is_file():
        return None
    values = read_json_object(path)
    if not is_head_config(values):
        return None
    config = head_config(values, str(path), target.config)
    shapes = head_shapes(config)
    if dummy:
        weights: Checkpoint = DummyCheckpoint(config.layer, shapes, device)
        return HeadCheckpoint(config, converted(weights, quantization), torch.arange(config.draft_vocab_size))
    maps = {"d2t": (config.draft_vocab_size,), "t2d": (target.config.vocab_size,)}
    scheme = scheme_in(values, str(path))
    own = SafetensorsCheckpoint(
        source.path, config.layer, shapes | maps, _stored, lambda name: bool(_UNREAD.fullmatch(name))
    )
    # Heads of Qwen models often have their target's flag, and an output projection of their own all the same.
    if config.layer.tied_embeddings and HEAD not in own:
        raise ModelLoadError(f"{path}: tie_word_embeddings: true is not supported for heads without {HEAD}")
    target_ids = _target_ids(own, config, source.path)
    complete = _Completed(with_scales(own, scheme, str(path)), target, target_ids, source.path)
    return HeadCheckpoint(config, converted(complete, quantization), target_ids)


def _stored(name: str) -> StoredWeight:
    """The weight of a file's tensor: the formats differ in the layer's name, and in a prefix."""
    name = _OWN_LAYER.sub(lambda found: f"model.layers.{found[1] or 0}.", name)
    return StoredWeight(_OWN_TABLE.sub(r"model.\1.", name))


def _target_ids(own: Checkpoint, config: HeadConfig, folder: Path) -> Tensor:
    vocab, size = config.layer.vocab_size, config.draft_vocab_size
    if "d2t" in own:
        ids = torch.arange(size) + own.tensor("d2t").data.long()
    elif "t2d" in own:
        ids = own.tensor("t2d").data.bool().nonzero().flatten()
    elif size == vocab:
        ids = torch.arange(vocab)
    else:
        raise ModelLoadError(f"{folder}: d2t: not in this checkpoint, though only {size} of {vocab} tokens are drafted")
    outside = ids[(ids < 0) | (ids >= vocab)]
    if len(outside):
        raise ModelLoadError(f"{folder}: d2t: names token {outside[0]}, and the target's vocabulary has {vocab}")
    if len(ids.unique()) != size:
        raise ModelLoadError(f"{folder}: d2t: has {len(ids.unique())} different tokens, and draft_vocab_size is {size}")
    if "t2d" in own:
        marked = own.tensor("t2d").data.bool()
        if not marked[ids].all() or int(marked.sum()) != size:
            raise ModelLoadError(f"{folder}: t2d: marks other tokens than d2t names")
    return ids


class _Completed(Checkpoint):
    """A head's weights, with embedding and output projection from its target where the head has none."""

    def __init__(self, own: Checkpoint, target: Checkpoint, target_ids: Tensor, folder: Path) -> None:
        self.config: ModelConfig = own.config
        self._own, self._target, self._target_ids, self._folder = own, target, target_ids, folder

    @override
    def __contains__(self, name: str) -> bool:
        return name in self._own or name in (EMBEDDING, HEAD)

    @override
    def tensor(self, name: str) -> RawTensor:
        if name in self._own or name not in (EMBEDDING, HEAD):
            return self._own.tensor(name)
        has, wanted = self._target.config.hidden_size, self.config.hidden_size
        if has != wanted:
            raise ModelLoadError(
                f"{self._folder}: {name}: not in this checkpoint, and the target's has {has} columns: "
                f"a head with a hidden_size of {wanted} needs its own"
            )
        if name == EMBEDDING:
            return self._target.tensor(name)
        raw = self._target.tensor(EMBEDDING if self._target.config.tied_embeddings else name)
        if len(self._target_ids) == raw.shape[0]:
            return raw
        if raw.scales is not None:
            raw = RawTensor(raw.name, "F32", raw.shape, quant.dequantize(raw))
        # The rows of dense weights and of GGUF's blocks alike.
        return replace(raw, shape=(len(self._target_ids), raw.shape[1]), data=raw.data[self._target_ids])
