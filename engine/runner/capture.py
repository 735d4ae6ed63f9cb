"""``GraphRecorder``: captures CUDA graphs that share memory. `Rehearsal`: the same calls, without graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

_T = TypeVar("_T")

_STAGES = 4
"""Host copies of a graph's inputs, used in turn. At most two steps are in flight, so a copy's upload has long run when the
copy is written again."""


class Recorder(Protocol):
    """Captures graphs."""

    def separate(self) -> Recorder:
        """Another recorder, whose graphs share no memory with this one's."""
        ...

    def record(
        self, work: Callable[[], _T], warm_up: Callable[[], object] | None = None
    ) -> tuple[torch.cuda.CUDAGraph, _T]:
        """The graph of ``work``, and what ``work`` returns.

        ``warm_up`` runs before the capture (where unset, the work itself): compiling and set-up must not be captured.
        """
        ...


class Rehearsal(Recorder):
    """Only does the work, to find out which kernels it launches (`kernels/triton/compile/ahead.py`). Its graphs are empty."""

    @override
    def separate(self) -> Rehearsal:
        return self

    @override
    def record(
        self, work: Callable[[], _T], warm_up: Callable[[], object] | None = None
    ) -> tuple[torch.cuda.CUDAGraph, _T]:
        del warm_up
        return torch.cuda.CUDAGraph(), work()


class GraphRecorder(Recorder):
    """Captures graphs that take their memory from one pool.

    Memory that one graph allocates and no tensor keeps is used again by later graphs. So the graphs may only run one after
    the other, and values left in such memory (see `unowned`) last until the next graph runs.
    """

    def __init__(self, device: torch.device) -> None:
        """An empty pool."""
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    @override
    def separate(self) -> GraphRecorder:
        return GraphRecorder(self._device)

    @override
    def record(
        self, work: Callable[[], _T], warm_up: Callable[[], object] | None = None
    ) -> tuple[torch.cuda.CUDAGraph, _T]:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream), torch.inference_mode():
            (warm_up or work)()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            result = work()
            graph.capture_end()
        current.wait_stream(self._stream)
        return graph, result


class GraphInput:
    """A tensor that graphs read, and the pinned host arrays that it is uploaded from."""

    def __init__(self, words: int, device: torch.device) -> None:
        """``words`` int64, all zero."""
        self._stages = tuple(torch.zeros(words, dtype=torch.int64, pin_memory=True) for _ in range(_STAGES))
        self._step = 0
        self.tensor = torch.zeros(words, dtype=torch.int64, device=device)

    def upload(self, fill: Callable[[Tensor], object]) -> None:
        """Let ``fill`` write a host array, and upload it in the current stream's order."""
        self._step += 1
        stage = self._stages[self._step % _STAGES]
        fill(stage)
        self.tensor.copy_(stage, non_blocking=True)


@dataclass(frozen=True, slots=True)
class _Memory:
    """A piece of device memory, as `torch.as_tensor` reads it (https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html)."""

    __cuda_array_interface__: dict[str, object]


def unowned(tensor: Tensor) -> Tensor:
    """A view of a contiguous tensor's memory that does not keep the memory from being used again."""
    whole = {"shape": tuple(tensor.shape), "typestr": f"<i{tensor.element_size()}", "version": 3}
    memory = _Memory(whole | {"data": (tensor.data_ptr(), False)})
    return torch.as_tensor(memory, device=tensor.device).view(tensor.dtype)
