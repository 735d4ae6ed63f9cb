"""Weights and tokenizers that all engines of a test process share, since loading them takes most of an engine's start."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

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

_open = functools.cache(open_checkpoint)
_tokenizer = functools.cache(load_tokenizer)
_models: dict[tuple[Checkpoint, ModelConfig, torch.dtype, torch.device], Model] = {}


@contextmanager
def loaded_once() -> Iterator[None]:
    """Let engines that start in this context have what an earlier one loaded, in whichever test module.

    They must take turns: no two may run steps at the same time.
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
        patch.setattr("draftline.engine.build.open_checkpoint", _open)
        patch.setattr("draftline.engine.build.load_tokenizer", _tokenizer)
        patch.setattr("draftline.engine.parallel.target.build_model", load)
        yield
