"""Weights and tokenizers that all engines of a test process share, since loading them takes most of an engine's start."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftline.kernels.ops import Ops
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.config import ModelConfig
from draftline.models.families import build_model
from draftline.models.loader import open_checkpoint
from draftline.models.model import Model
from draftline.models.parallel.shard import WHOLE, Shard
from draftline.models.tokenization.tokenizer import load_tokenizer
from draftline.quant.tensor import RawTensor


class _Beginning:
    """A checkpoint's first layers."""

    def __init__(self, checkpoint: Checkpoint, layers: int) -> None:
        self._checkpoint = checkpoint
        config = checkpoint.config
        self.config = replace(config, num_layers=layers, sliding_windows=config.sliding_windows[:layers])

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def tensor(self, name: str) -> RawTensor:
        return self._checkpoint.tensor(name)


@functools.cache
def _open(model: str, layers: int | None = None, **options: Any) -> Checkpoint:
    checkpoint = open_checkpoint(model, **options)
    return checkpoint if layers is None else _Beginning(checkpoint, layers)


_tokenizer = functools.cache(load_tokenizer)
_models: dict[tuple[Checkpoint, ModelConfig, torch.dtype, torch.device], Model] = {}


@contextmanager
def loaded_once(*, layers: int | None = None) -> Iterator[None]:
    """Let engines that start in this context have what an earlier one loaded, in whichever test module.

    They must take turns: no two may run steps at the same time. With ``layers`` all models end behind that many: their
    answers make no sense, and come several times as fast.
    """

    def load(
        checkpoint: Checkpoint, config: ModelConfig, ops: Ops, dtype: torch.dtype, device: torch.device, shard: Shard
    ) -> Model:
        assert shard is WHOLE, "a part of a model is not shared"
        key = checkpoint, config, dtype, device
        if key not in _models:
            _models[key] = build_model(checkpoint, config, ops, dtype, device)
        return _models[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftline.engine.loading.open_checkpoint", functools.partial(_open, layers=layers))
        patch.setattr("draftline.engine.request.language.load_tokenizer", _tokenizer)
        patch.setattr("draftline.engine.parallel.target.build_model", load)
        if layers is not None:  # the embedded model's head reads the layers of a whole one
            patch.setattr("draftline.engine.build.with_embedded_draft", lambda config: config)
        yield
