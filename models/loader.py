"""``open_checkpoint``: a model by any of its names, as a `Checkpoint`. `open_draft_checkpoint`: a draft for another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.checkpoints.draft_folder import DRAFT_OF, SharingCheckpoint, read_draft_of
from draftline.models.checkpoints.dummy import DummyCheckpoint
from draftline.models.checkpoints.json_file import read_json_object
from draftline.models.checkpoints.quantized import ConvertedCheckpoint, scheme_in, with_scales
from draftline.models.checkpoints.resolve import (
    ADAPTER_FILE,
    MODEL_FILES,
    TOKENIZER_FILES,
    ModelSource,
    SourceKind,
    resolve_model,
)
from draftline.models.checkpoints.safetensors import SafetensorsCheckpoint
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.families import config_from_hf
from draftline.models.gguf.checkpoint import GGUFCheckpoint
from draftline.models.gguf.file import open_gguf
from draftline.models.heads.config import is_head_config
from draftline.quant import CONVERT

_HOST = torch.device("cpu")


def open_checkpoint(
    model: str, *, load_format: str = "auto", quantization: str = "auto", device: torch.device = _HOST
) -> Checkpoint:
    """Open a model's checkpoint. Tensors are read on demand.

    Args:
        model: see `resolve_model`.
        load_format: ``auto`` reads the model's files; ``dummy`` reads its configuration and makes random weights.
        quantization: ``auto`` keeps the files' formats; else the format to convert projections to (``quant.CONVERT``).
        device: where random weights are made. Files are read into the host's memory.

    Raises:
        ModelLoadError: the model does not exist, or its files are missing, damaged or not supported.
    """
    return converted(_open(model, load_format, device), quantization)


def converted(checkpoint: Checkpoint, quantization: str) -> Checkpoint:
    """The checkpoint with dense projections converted to a format of ``quant.CONVERT``; ``auto`` leaves them."""
    if quantization == "auto":
        return checkpoint
    if quantization not in CONVERT:
        raise ModelLoadError(f"quantization: {quantization!r} is not supported; 'auto', {', '.join(CONVERT)} are")
    return ConvertedCheckpoint(checkpoint, quantization)


def _open(model: str, load_format: str, device: torch.device) -> Checkpoint:
    if load_format == "auto":
        source = resolve_model(model, MODEL_FILES)
        return _CHECKPOINTS[source.kind](source)
    if load_format == "dummy":
        source = resolve_model(model, TOKENIZER_FILES)
        return DummyCheckpoint(_CONFIGS[source.kind](source), device=device)
    raise ModelLoadError(f"load_format: {load_format!r} is not supported; 'auto' and 'dummy' are")


def open_draft_checkpoint(
    model: str,
    target: Checkpoint,
    *,
    load_format: str = "auto",
    quantization: str = "auto",
    device: torch.device = _HOST,
) -> Checkpoint:
    """Open a draft model's checkpoint, with the weights that it shares from ``target``.

    Args:
        model: a draft's folder (`draft_folder`), or any model that `open_checkpoint` opens.
        target: the target model's checkpoint.
        load_format: see `open_checkpoint`.
        quantization: see `open_checkpoint`; the draft's own.
        device: see `open_checkpoint`.

    Raises:
        ModelLoadError: see `open_checkpoint`; or the draft does not fit the target.
    """
    if load_format != "auto":
        return open_checkpoint(model, load_format=load_format, quantization=quantization, device=device)
    source = resolve_model(model, MODEL_FILES)
    if source.kind is SourceKind.FOLDER:
        values, where = _folder_values(source)
        draft_of = read_draft_of(values, where)
        if draft_of is not None:
            own = SafetensorsCheckpoint(source.path, config_from_hf(values, where))
            return converted(SharingCheckpoint(own, target, draft_of.shared, where), quantization)
    return open_checkpoint(model, quantization=quantization)


def _folder_values(source: ModelSource) -> tuple[dict[str, object], str]:
    """The content of a folder's ``config.json``, and the file's path for error messages."""
    path: Path = source.path / "config.json"
    if not path.is_file() and (source.path / ADAPTER_FILE).is_file():
        raise ModelLoadError(
            f"{source.path}: holds an adapter ({ADAPTER_FILE}) and no model: merge it into the checkpoint of its model"
        )
    return read_json_object(path), str(path)


def _folder_config(source: ModelSource) -> ModelConfig:
    return config_from_hf(*_folder_values(source))


def _open_folder(source: ModelSource) -> Checkpoint:
    values, where = _folder_values(source)
    if is_head_config(values):
        raise ModelLoadError(
            f"{where}: this is a draft head, which cannot be loaded by itself, only as the draft model of its target"
        )
    draft_of = read_draft_of(values, where)
    if draft_of is not None and draft_of.shared:
        raise ModelLoadError(
            f"{where}: {DRAFT_OF}: this is a draft model that takes {', '.join(draft_of.shared)} from its target"
            f" {draft_of.model}; it cannot be loaded by itself, only as the draft model of that target"
        )
    # Refused before the files are opened: the tensors of another method may not be those of the configuration.
    scheme = scheme_in(values, where)
    return with_scales(SafetensorsCheckpoint(source.path, config_from_hf(values, where)), scheme, where)


def _open_gguf(source: ModelSource) -> Checkpoint:
    return GGUFCheckpoint(open_gguf(source.path))


def _gguf_config(source: ModelSource) -> ModelConfig:
    return _open_gguf(source).config


_CHECKPOINTS: dict[SourceKind, Callable[[ModelSource], Checkpoint]] = {
    SourceKind.FOLDER: _open_folder,
    SourceKind.GGUF: _open_gguf,
}
_CONFIGS: dict[SourceKind, Callable[[ModelSource], ModelConfig]] = {
    SourceKind.FOLDER: _folder_config,
    SourceKind.GGUF: _gguf_config,
}
