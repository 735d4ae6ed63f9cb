"""``ModelWork``: the arithmetic and the memory traffic of a step, counted from the model's shape.

These are the model's own counts, whatever kernels run: two operations for each weight and token, four for each attended
position and head dimension; every weight read once a step, each row's keys and values read once a layer. Activations,
sampling and the drafter's own model are not counted. So a share of a device's limit is a lower bound of its use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

import torch

from draftline.kernels.batch import bytes_a_head
from draftline.models.config import ModelConfig
from draftline.models.families import weight_shapes
from draftline.models.model import Model


class StepWork(NamedTuple):
    """The work of one step, or of many.

    Attributes:
        flops: floating-point operations; a multiplication and an addition are two.
        num_bytes: bytes read from and written to the device's memory.
    """

    flops: float
    num_bytes: float

    def seconds(self, flops_per_s: float, bytes_per_s: float) -> float:
        """The time that a device takes at least, at its peak rates."""
        return max(self.flops / flops_per_s, self.num_bytes / bytes_per_s)


class ModelWork:
    """Counts the work of a model's steps.

    Attributes:
        weight_bytes: bytes of the weights that every step reads: all but the embedding tables.
        cache_bytes_a_token: bytes of a token's keys and values in all layers.
    """

    def __init__(self, config: ModelConfig, weight_bytes: float, cache_dtype: torch.dtype) -> None:
        """Count for a model.

        Args:
            config: its shape.
            weight_bytes: bytes of the weights that every step reads.
            cache_dtype: of keys and values.
        """
        shapes = {name: shape for name, shape in weight_shapes(config).items() if len(shape) == 2}
        self._layer_weights = sum(prod(shape) for name, shape in shapes.items() if ".layers." in name)
        self._head_weights = config.vocab_size * config.hidden_size
        self._windows = Counter(config.sliding_windows)
        self._flops_a_position = 4 * config.num_heads * config.head_dim
        self._layer_cache_bytes = 2 * config.num_kv_heads * bytes_a_head(config.head_dim, cache_dtype)
        self.weight_bytes = weight_bytes
        self.cache_bytes_a_token = config.num_layers * self._layer_cache_bytes

    @staticmethod
    def of(model: Model, cache_dtype: torch.dtype) -> ModelWork:
        """The counts of a loaded model."""
        tables = sum(prod(shape) for name, shape in weight_shapes(model.config).items() if ".embed_" in name)
        return ModelWork(model.config, model.nbytes - tables * model.dtype.itemsize, cache_dtype)

    def step(self, rows: Iterable[tuple[int, int]], logits: int) -> StepWork:
        """The work of one step.

        Args:
            rows: of each row the tokens that are in the cache before the step, and the tokens that it computes.
            logits: the positions that get logits.
        """
        rows = list(rows)
        tokens = sum([count for _, count in rows])
        flops = 2.0 * (tokens * self._layer_weights + logits * self._head_weights)
        num_bytes = self.weight_bytes + float(tokens * self.cache_bytes_a_token)
        for window, layers in self._windows.items():
            if window is None:
                attended = sum([count * start + count * (count + 1) // 2 for start, count in rows])
                read = sum([start + count for start, count in rows])
            else:
                attended = sum([_attended(start, count, window) for start, count in rows])
                read = sum([min(start + count, window + count - 1) for start, count in rows])
            flops += layers * attended * self._flops_a_position
            num_bytes += layers * read * self._layer_cache_bytes
        return StepWork(flops, num_bytes)


def _attended(start: int, count: int, window: int) -> int:
    """The positions that ``count`` tokens after ``start`` others attend to, at most ``window`` each."""
    growing = max(0, min(count, window - start))  # tokens whose window is not full yet
    return growing * start + growing * (growing + 1) // 2 + (count - growing) * window
