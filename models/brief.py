"""``BriefModel``: a model's first layers, which launch every kernel of the whole model in a fraction of the time.

It finds out which kernels there are, before anything runs. What it computes means nothing.
"""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from draftline.kernels.batch import Batch, KVCache
from draftline.models.hidden_states import NO_HIDDEN_STATES, HiddenStateSink
from draftline.models.model import Model


class BriefModel(Model):
    """A model's `brief_layers`, or as many layers as a sink wants states of. The attributes are those of `Model`."""

    def __init__(self, model: Model) -> None:
        """Of ``model``, whose weights it shares."""
        self._model = model
        self.config, self.device = model.config, model.device
        self.dtype, self.cache_dtype, self.quantization = model.dtype, model.cache_dtype, model.quantization
        self.nbytes, self.brief_layers = model.nbytes, model.brief_layers

    @override
    def forward(self, batch: Batch, cache: KVCache, sink: HiddenStateSink = NO_HIDDEN_STATES) -> Tensor:
        layers = cache.layers[: max(self.brief_layers, len(sink.layers))]
        return self._model.forward(batch, KVCache(layers), _EarlyStates(sink, len(layers), len(cache.layers)))


class _EarlyStates(HiddenStateSink):
    """Wants as many states as another sink, but of the first layers.

    The output of the last layer stays that of the last.
    """

    def __init__(self, sink: HiddenStateSink, brief: int, whole: int) -> None:
        self._sink = sink
        early = tuple(range(len(sink.layers)))
        self.layers = (*early[:-1], brief) if whole in sink.layers else early

    @override
    def write(self, states: Tensor, batch: Batch) -> None:
        self._sink.write(states, batch)
