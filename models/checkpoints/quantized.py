"""Checkpoints with quantized weights: quantized in their files, or on loading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from typing_extensions import override

from draftline import quant
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.errors import ModelLoadError
from draftline.quant.scheme import Scheme
from draftline.quant.tensor import RawTensor


def scheme_in(values: Mapping[str, object], where: str) -> Scheme | None:
    """The scheme of a ``config.json`` that has a ``quantization_config``.

    Args:
        values: the content of ``config.json``.
        where: the file that error messages name.

    Raises:
        ModelLoadError: the quantization scheme is not supported.
    """
    config = values.get("quantization_config")
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise ModelLoadError(f"{where}: quantization_config: expected an object, got {config!r}")
    try:
        return quant.scheme_of(config)
    except quant.UnsupportedFormatError as error:
        raise ModelLoadError(f"{where}: {error}") from error


def with_scales(checkpoint: Checkpoint, scheme: Scheme | None, where: str) -> Checkpoint:
    """An HF folder's checkpoint, with scales on the weights if it has a scheme; ``where`` is its ``config.json``."""
    return checkpoint if scheme is None else ScaledCheckpoint(checkpoint, scheme, where)


class ScaledCheckpoint(Checkpoint):
    """A checkpoint with eight-bit weights, whose scales are separate tensors."""

    def __init__(self, checkpoint: Checkpoint, scheme: Scheme, where: str) -> None:
        self.config = checkpoint.config
        self._checkpoint, self._scheme, self._where = checkpoint, scheme, where

    @override
    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    @override
    def tensor(self, name: str) -> RawTensor:
        raw = self._checkpoint.tensor(name)
        if raw.format != self._scheme.format or len(raw.shape) != 2:
            return raw
        names = self._scheme.scale_names(name)
        scale = next((scale for scale in names if scale in self._checkpoint), None)
        if scale is None:
            missing = " or ".join(names)
            raise ModelLoadError(f"{self._where}: {name}: is {raw.format}, but the checkpoint has no {missing}")
        try:
            return self._scheme.scaled(raw, self._checkpoint.tensor(scale))
        except quant.UnsupportedFormatError as error:
            raise ModelLoadError(f"{self._where}: {error}") from error


class ConvertedCheckpoint(Checkpoint):
    """A checkpoint whose projections are converted to another format on their device."""

    def __init__(self, checkpoint: Checkpoint, convert_to: str) -> None:
        """``convert_to`` is a key of ``quant.CONVERT``."""
        self.config = checkpoint.config
        self._checkpoint, self._convert_to = checkpoint, convert_to

    @override
    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    @override
    def tensor(self, name: str) -> RawTensor:
        return replace(self._checkpoint.tensor(name), convert_to=self._convert_to)
