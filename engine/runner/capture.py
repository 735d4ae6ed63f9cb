"""``GraphRecorder``: CUDA graphs that share memory. `Rehearsal`: the same calls, without graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

_Left = TypeVar("_Left")

_STAGES = 4
"""Host copies of a graph's inputs. A copy is written again after as many steps, when the last one's upload has long
run: at most two steps are ever under way."""


class Recorder(Protocol):
    """What captures graphs."""

    def beside(self) -> Recorder:
        """One whose graphs take no memory from this one's."""
        ...

    def record(
        self, work: Callable[[], _Left], warm_up: Callable[[], object] | None = None
    ) -> tuple[torch.cuda.CUDAGraph, _Left]:
        """The graph of ``work``, and what it returns.

        ``warm_up`` (the work itself where unset) runs before: what is compiled or set up then must not be recorded.
        """
        ...


class Rehearsal:
    """Only does the work, to find out which kernels it launches (`kernels.triton.compile_ahead`). Its graphs are empty."""

    def beside(self) -> Rehearsal:
        """See `Recorder.beside`."""
        return self

    def record(
        self, work: Callable[[], _Left], warm_up: Callable[[], object] | None = None
    ) -> tuple[torch.cuda.CUDAGraph, _Left]:
        """See `Recorder.record`."""
        del warm_up
        return torch.cuda.CUDAGraph(), work()


class GraphRecorder:
    """Records graphs that take their memory from one pool.

    What a graph allocates and nobody keeps, later ones use again. So they may only run one after the other, and what one
    leaves in such memory (see `unowned`) is there until the next runs.
    """

    def __init__(self, device: torch.device) -> None:
        """An empty pool."""
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def beside(self) -> GraphRecorder:
        """See `Recorder.beside`."""
        return GraphRecorder(self._device)

    def record(
        self, work: Callable[[], _Left], warm_up: Callable[[], object] | None = None
    ) -> tuple[torch.cuda.CUDAGraph, _Left]:
        """See `Recorder.record`."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream), torch.inference_mode():
            (warm_up or work)()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            left = work()
            graph.capture_end()
        current.wait_stream(self._stream)
        return graph, left


class GraphInput:
    """A tensor that graphs read, and pinned arrays from which it is uploaded."""

    def __init__(self, words: int, device: torch.device) -> None:
        """``words`` int64, all zero."""
        self._stages = tuple(torch.zeros(words, dtype=torch.int64, pin_memory=True) for _ in range(_STAGES))
        self._step = 0
        self.tensor = torch.zeros(words, dtype=torch.int64, device=device)

    def upload(self, fill: Callable[[Tensor], None]) -> None:
        """Let ``fill`` write an array, and upload it in the order of the current stream."""
        self._step += 1
        stage = self._stages[self._step % _STAGES]
        fill(stage)
        self.tensor.copy_(stage, non_blocking=True)


@dataclass(frozen=True, slots=True)
class _Memory:
    """Some memory, as `torch.as_tensor` reads it (https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html)."""

    __cuda_array_interface__: dict[str, object]


def unowned(tensor: Tensor) -> Tensor:
    """A contiguous tensor's memory, which is not kept from being used again."""
    whole = {"shape": tuple(tensor.shape), "typestr": f"<i{tensor.element_size()}", "version": 3}
    memory = _Memory(whole | {"data": (tensor.data_ptr(), False)})
    return torch.as_tensor(memory, device=tensor.device).view(tensor.dtype)
