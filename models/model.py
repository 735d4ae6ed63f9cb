"""``Model``: the interface of a model to the engine and the drafters, whatever its family."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from draftline.kernels.batch import Batch, KVCache
from draftline.models.config import ModelConfig
from draftline.models.hidden_states import NO_HIDDEN_STATES, HiddenStateSink


class Model(Protocol):
    """A model with its weights on one device.

    Attributes:
        config: its shape.
        dtype: of its weights.
        cache_dtype: of its activations and cache; float32 where a CPU runs float16 weights.
        device: of its weights.
        quantization: the formats of its projections, joined with ``+``, for reports.
        nbytes: bytes of its weights.
        brief_layers: how many of the first layers launch the kernels of all, or a larger number; see `forward`.
    """

    config: ModelConfig
    dtype: torch.dtype
    cache_dtype: torch.dtype
    device: torch.device
    quantization: str
    nbytes: int
    brief_layers: int

    def forward(self, batch: Batch, cache: KVCache, sink: HiddenStateSink = NO_HIDDEN_STATES) -> Tensor:
        """Write the batch's keys and values to the cache and return the logits of ``logits_index``.

        Args:
            batch: the tokens.
            cache: of all layers, or of the first `brief_layers` or more: then only these compute.
            sink: receives the hidden states that it wants.

        Returns:
            [S, vocab], float32 on a CPU and ``dtype`` elsewhere.
        """
        ...
