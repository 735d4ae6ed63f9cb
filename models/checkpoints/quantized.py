"""Checkpoints whose weights are quantized: in their files, or while they are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from draftline import quant
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.errors import ModelLoadError
from draftline.quant.scheme import Scheme
from draftline.quant.tensor import RawTensor


def with_scales(checkpoint: Checkpoint, values: Mapping[str, object], where: str) -> Checkpoint:
    """An HF folder's checkpoint; where its ``config.json`` says that it is quantized, weights come with their scales.

    Args:
        checkpoint: the folder's tensors.
        values: the content of ``config.json``.
        where: the file that error messages name.

    Raises:
        ModelLoadError: it is quantized in a way that nothing here reads.
    """
    config = values.get("quantization_config")
    if config is None:
        return checkpoint
    if not isinstance(config, Mapping):
        raise ModelLoadError(f"{where}: quantization_config: expected an object, got {config!r}")
    try:
        scheme = quant.scheme_of(config)
    except quant.UnsupportedFormatError as error:
        raise ModelLoadError(f"{where}: {error}") from error
    return ScaledCheckpoint(checkpoint, scheme, where)


class ScaledCheckpoint:
    """A checkpoint with eight-bit weights, each of which has its scales beside it under another name."""

    def __init__(self, checkpoint: Checkpoint, scheme: Scheme, where: str) -> None:
        self.config = checkpoint.config
        self._checkpoint, self._scheme, self._where = checkpoint, scheme, where

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def tensor(self, name: str) -> RawTensor:
        """Read one tensor. See `Checkpoint.tensor`."""
        raw = self._checkpoint.tensor(name)
        if raw.format != self._scheme.format or len(raw.shape) != 2:
            return raw
        scale = self._scheme.scale_name(name)
        if scale not in self._checkpoint:
            raise ModelLoadError(f"{self._where}: {name}: is {raw.format}, but the checkpoint has no {scale}")
        try:
            return self._scheme.scaled(raw, self._checkpoint.tensor(scale))
        except quant.UnsupportedFormatError as error:
            raise ModelLoadError(f"{self._where}: {error}") from error


class ConvertedCheckpoint:
    """A checkpoint whose projections are converted to another format when they are put on their device."""

    def __init__(self, checkpoint: Checkpoint, convert_to: str) -> None:
        """``convert_to`` is a key of ``quant.CONVERT``."""
        self.config = checkpoint.config
        self._checkpoint, self._convert_to = checkpoint, convert_to

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def tensor(self, name: str) -> RawTensor:
        """Read one tensor. See `Checkpoint.tensor`."""
        return replace(self._checkpoint.tensor(name), convert_to=self._convert_to)
