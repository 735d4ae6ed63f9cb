"""``open_head``: an EAGLE-3 head's folder, and the map from its own small vocabulary to the target's.

A head's folder may leave out the token embedding and the output projection. They are the target's then, the
projection's rows being those of the tokens that the head can draft. Two tensors map the vocabularies: ``d2t`` has each
draft token's distance from its token of the target, and ``t2d`` marks the target's tokens that can be drafted.

Tables may be padded: they have more rows than there are tokens. Rows of padding are cut. The vocabularies of a head and
its target may be padded to different sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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
    text_tokens: Callable[[], int] | None = None,
) -> HeadCheckpoint | None:
    """Open a head for ``target``, or return None where ``model`` is no head.

    Args:
        model: see `resolve_model`.
        target: the target's checkpoint.
        load_format: ``dummy`` makes random weights, with which the first tokens are those that can be drafted.
        quantization: the format to convert the projections to; ``auto`` keeps their own.
        device: where random weights are made.
        text_tokens: the number of the tokenizer's tokens, for a head whose vocabulary has another size than its
            target's: what both have beyond that number is padding. None refuses such a head.

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
    stored = head_config(values, str(path), target.config, text_tokens)
    if dummy:
        target_ids = torch.arange(min(stored.draft_vocab_size, target.config.vocab_size))
        config = _fitted(stored, target.config, target_ids)
        weights: Checkpoint = DummyCheckpoint(config.layer, head_shapes(config), device)
        return HeadCheckpoint(config, converted(weights, quantization), target_ids)
    maps = {"d2t": (stored.draft_vocab_size,), "t2d": (stored.layer.vocab_size,)}
    scheme = scheme_in(values, str(path))
    own = SafetensorsCheckpoint(
        source.path,
        stored.layer,
        head_shapes(stored) | maps,
        _stored,
        lambda name: bool(_UNREAD.fullmatch(name)),
        padded=(EMBEDDING, HEAD, "t2d"),
    )
    # Heads of Qwen models often have their target's flag, and an output projection of their own all the same.
    if stored.layer.tied_embeddings and HEAD not in own:
        raise ModelLoadError(f"{path}: tie_word_embeddings: true is not supported for heads without {HEAD}")
    target_ids = _target_ids(own, stored, target.config.vocab_size, source.path)
    config = _fitted(stored, target.config, target_ids)
    complete = _Completed(config, with_scales(own, scheme, str(path)), target, target_ids, source.path)
    return HeadCheckpoint(config, converted(complete, quantization), target_ids)


def _fitted(stored: HeadConfig, target: ModelConfig, target_ids: Tensor) -> HeadConfig:
    """The configuration of a head with its target's vocabulary, from that with the sizes in its files."""
    layer = replace(stored.layer, vocab_size=target.vocab_size)
    return replace(stored, layer=layer, draft_vocab_size=len(target_ids))


def _stored(name: str) -> StoredWeight:
    """The weight of a file's tensor: the formats differ in the layer's name, and in a prefix."""
    name = _OWN_LAYER.sub(lambda found: f"model.layers.{found[1] or 0}.", name)
    return StoredWeight(_OWN_TABLE.sub(r"model.\1.", name))


def _target_ids(own: Checkpoint, stored: HeadConfig, target_vocab: int, folder: Path) -> Tensor:
    size, vocab = stored.draft_vocab_size, min(stored.layer.vocab_size, target_vocab)
    if "d2t" in own:
        ids = torch.arange(size) + own.tensor("d2t").data.long()
    elif "t2d" in own:
        ids = own.tensor("t2d").data.bool().nonzero().flatten()
    elif size == stored.layer.vocab_size:
        return torch.arange(vocab)
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

    def __init__(
        self, config: HeadConfig, own: Checkpoint, target: Checkpoint, target_ids: Tensor, folder: Path
    ) -> None:
        self.config: ModelConfig = config.layer
        self._rows = {EMBEDDING: config.layer.vocab_size, HEAD: config.draft_vocab_size}
        self._own, self._target, self._target_ids, self._folder = own, target, target_ids, folder

    @override
    def __contains__(self, name: str) -> bool:
        return name in self._own or name in (EMBEDDING, HEAD)

    @override
    def tensor(self, name: str) -> RawTensor:
        if name in self._own or name not in self._rows:
            raw = self._own.tensor(name)
            return raw.with_rows(self._rows[name]) if name in self._rows else raw
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
