"""``HiddenStateSink``: receives hidden states of a target while it computes, for drafters that continue from them.

A sink names the layers that it wants. The model copies the residual stream before each of these layers, and passes the
copies on at the end of its forward pass. Every model does this for any sink, and `NO_HIDDEN_STATES` wants none. So a
step is the same for all drafters, and a CUDA graph of it has the copies in it.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import override

from draftline.kernels.batch import Batch
from draftline.kernels.ops import Ops


class HiddenStateSink(Protocol):
    """Wants some hidden states of every token that a model computes.

    Attributes:
        layers: for each i, the residual stream before layer i: 0 is the embeddings, and the number of layers is the
            output of the last one. Ascending.
    """

    layers: tuple[int, ...]

    def write(self, states: Tensor, batch: Batch) -> None:
        """Take the states of a batch, in stream order and without waiting for the device.

        Args:
            states: [T, len(layers), hidden], which the caller does not use again.
            batch: the T tokens. Those with a ``cache_index`` of -1 are padding.
        """
        ...


class UnreadStates(HiddenStateSink):
    """Reads no states. A model that copies them computes the same tokens as one whose states are read."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        """``layers`` are the states that it wants all the same."""
        self.layers = layers

    @override
    def write(self, states: Tensor, batch: Batch) -> None:
        pass


NO_HIDDEN_STATES = UnreadStates(())


class StateCopies:
    """The states that one forward pass copies for a sink."""

    def __init__(self, sink: HiddenStateSink, residual: Tensor, ops: Ops) -> None:
        """``residual`` is the stream before the first layer, [T or more, hidden]; rows beyond T are padding."""
        self._sink, self._ops = sink, ops
        self._states = residual.new_empty((residual.shape[0], len(sink.layers), residual.shape[1]))

    def before_layer(self, index: int, residual: Tensor) -> None:
        """Copy the stream before layer ``index`` if it is wanted. Layers may write over it."""
        if index in self._sink.layers:
            self._ops.copy_rows(residual, self._states[:, self._sink.layers.index(index)])

    def finish(self, layers: int, residual: Tensor, batch: Batch) -> None:
        """Copy the output of the last of the ``layers`` if it is wanted, and pass everything on."""
        if self._sink.layers:
            self.before_layer(layers, residual)
            self._sink.write(self._states[: batch.token_ids.shape[0]], batch)


def write_states(sink: HiddenStateSink, states: list[Tensor], batch: Batch) -> None:
    """Pass on states that a program has collected: one [T or more, hidden] for each of the sink's layers."""
    if states:
        sink.write(torch.stack(states, dim=1)[: batch.token_ids.shape[0]], batch)
