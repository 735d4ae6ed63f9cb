"""A sink that keeps what it gets."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from draftline.kernels.batch import Batch
from draftline.models.hidden_states import HiddenStateSink


class KeptStates(HiddenStateSink):
    """Wants the states of some layers.

    Attributes:
        states: those of the last batch.
    """

    def __init__(self, *layers: int) -> None:
        self.layers = layers
        self.states = torch.empty(0)

    @override
    def write(self, states: Tensor, batch: Batch) -> None:
        self.states = states.clone()
