"""Stand-ins for CUDA graphs: what a graph does is done again on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class HostGraph:
    """Does its work again: its inputs are where they were."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        self._work()


class HostRecorder:
    """A `Recorder` without a device.

    Attributes:
        graphs: those that it has recorded.
    """

    def __init__(self) -> None:
        self.graphs: list[HostGraph] = []

    def separate(self) -> HostRecorder:
        return self

    def record(self, work: Callable[[], Any]) -> tuple[HostGraph, Any]:
        self.graphs.append(HostGraph(work))
        return self.graphs[-1], None


class HostInputGraph:
    """An `InputGraph` without a device."""

    def __init__(self, words: int, device: torch.device) -> None:
        self.tensor = torch.zeros(words, dtype=torch.int64)

    def record(self, recorder: HostRecorder, work: Callable[[], Any]) -> Any:
        self._graph, result = recorder.record(work)
        return result

    def launch(self, fill: Callable[[np.ndarray], object]) -> None:
        fill(self.tensor.numpy())
        self._graph.replay()


class HostWritingInputGraph(HostInputGraph):
    """A `WritingInputGraph` without a device."""

    def __init__(self, words: int, write_words: int, out: torch.Tensor) -> None:
        self._message = torch.zeros(words + write_words, dtype=torch.int64)
        self.tensor = self._message[:words]
        self._out = out

    def launch(self, fill: Callable[[np.ndarray], object]) -> None:
        fill(self._message.numpy())
        write(self._message[len(self.tensor) :], self._out)
        self._graph.replay()


class ResultRecorder(HostRecorder):
    """A recorder of graphs that leave results: every replay writes them to the same tensors."""

    def __init__(self, *state: torch.Tensor) -> None:
        """``state`` is what the graphs' work changes, and a recording must not."""
        super().__init__()
        self._state = state

    def record(self, work: Callable[[], Any]) -> tuple[HostGraph, Any]:
        before = [tensor.clone() for tensor in self._state]
        kept = work()
        for tensor, was in zip(self._state, before, strict=True):
            tensor.copy_(was)

        def again() -> None:
            for old, new in zip(_tensors(kept), _tensors(work()), strict=True):
                old.copy_(new)

        self.graphs.append(HostGraph(again))
        return self.graphs[-1], kept


def _tensors(result: Any) -> list[torch.Tensor]:
    """Those of a tensor, or of tuples of them; none of None."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result or () for tensor in _tensors(part)]


class HostResultStages:
    """`ResultStages` without a device: those of the last step."""

    def deliver(self, *copied: torch.Tensor) -> None:
        self._copied = copied

    def take(self, samples: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tokens, accepted, moments = self._copied
        return tokens[:samples].clone(), accepted[:rows].clone(), moments.clone()


class HostWriteGraph:
    """A `WriteGraph` without a device."""

    def __init__(self, words: int, out: torch.Tensor, recorder: HostRecorder) -> None:
        self._message = torch.zeros(words, dtype=torch.int64)
        self._graph, _ = recorder.record(lambda: write(self._message, out))

    def launch(self, fill: Callable[[np.ndarray], object]) -> None:
        fill(self._message.numpy())
        self._graph.replay()


def write(message: torch.Tensor, out: torch.Tensor) -> None:
    """Carry out a message's writes."""
    count, size = int(message[0]), (len(message) - 1) // 3 * 2
    values = message[1 + size :].view(torch.int32)
    out.index_copy_(0, message[1 : 1 + count], values[:count])
