"""``GraphRecorder``: captures CUDA graphs that share memory. `Rehearsal`: the same calls, without graphs.

`Late` and `Captures`: when graphs are captured, at their first use or before.

`InputGraph`, `WriteGraph` and `ResultStages`: how inputs reach a graph, and results the host, without a copy that the
host launches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_STAGES = 4
"""Copies in pinned memory of a graph's inputs, or of results, used in turn. At most two steps are in flight on any
rank, so a copy has long been read when it is written again."""


@dataclass(slots=True)
class CaptureTime:
    """Seconds that captures have taken."""

    seconds: float = 0.0


class Recorder(Protocol):
    """Captures graphs."""

    def separate(self) -> Recorder:
        """Another recorder, whose graphs share no memory with this one's."""
        ...

    def record(self, work: Callable[[], _T]) -> tuple[torch.cuda.CUDAGraph, _T]:
        """The graph of ``work``, and what ``work`` returns. ``work`` is not run, and may be called more than once."""
        ...


class Rehearsal(Recorder):
    """Only does the work, to find out its kernels (`kernels/triton/compile/ahead.py`). Its graphs are empty."""

    @override
    def separate(self) -> Rehearsal:
        return self

    @override
    def record(self, work: Callable[[], _T]) -> tuple[torch.cuda.CUDAGraph, _T]:
        return torch.cuda.CUDAGraph(), work()


class GraphRecorder(Recorder):
    """Captures graphs that take their memory from one pool.

    Memory that one graph allocates and no tensor keeps is used again by later graphs. So the graphs may only run one
    after the other, and values left in such memory (see `unowned`) last until the next graph runs.
    """

    def __init__(self, device: torch.device, settle: Callable[[], bool], taken: CaptureTime | None = None) -> None:
        """An empty pool.

        Args:
            device: a CUDA device.
            settle: settles which kernels run what was captured (`Ops.settle`). True if others do now.
            taken: counts the time of captures, with that of other recorders; None for a counter of its own.
        """
        self._device = device
        self._settle = settle
        self._taken = taken or CaptureTime()
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # the default stream cannot be captured

    @override
    def separate(self) -> GraphRecorder:
        return GraphRecorder(self._device, self._settle, self._taken)

    @override
    def record(self, work: Callable[[], _T]) -> tuple[torch.cuda.CUDAGraph, _T]:
        started = time.monotonic()
        try:
            return self._settled(work)
        finally:
            self._taken.seconds += time.monotonic() - started

    def _settled(self, work: Callable[[], _T]) -> tuple[torch.cuda.CUDAGraph, _T]:
        graph, result = self._capture(work)
        if not self._settle():
            return graph, result
        # The next capture takes the result's memory. This graph lives meanwhile: torch uses no pool again whose last
        # graph has gone, if anything else is still in it, such as the vendor's workspace.
        del result
        return self._capture(work)

    def _capture(self, work: Callable[[], _T]) -> tuple[torch.cuda.CUDAGraph, _T]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.empty_cache()  # a capture cannot take memory that is only kept for reuse
        with torch.cuda.stream(self._stream), torch.inference_mode():
            # Relaxed: kernels are loaded at their first launch, which may be this one.
            graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")
            try:
                result = work()
            finally:
                graph.capture_end()
        return graph, result


class Late(Generic[_T]):
    """What is captured at its first use, or before.

    Where no memory is left for it, there is none, and smaller graphs or operations do its work.
    """

    def __init__(self, what: str, capture: Callable[[], _T]) -> None:
        """Nothing is captured yet.

        Args:
            what: names it in the log.
            capture: captures it.
        """
        self._what = what
        self._capture = capture
        self._captured: _T | None = None
        self.tried = False

    def require(self) -> _T:
        """It, captured now unless it was.

        Raises:
            torch.OutOfMemoryError: no memory is left for it.
        """
        if self._captured is None:
            self._captured = self._capture()
            self.tried = True
        return self._captured

    def find(self) -> _T | None:
        """It, captured now unless it was; None if no memory was left for it."""
        if not self.tried:
            self.tried = True
            try:
                self._captured = self._capture()
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                logger.warning(
                    "no memory is left for the CUDA graph of %s: smaller graphs or operations do its work", self._what
                )
        return self._captured


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a capture failed because torch's allocator, or the driver that instantiates graphs, had no memory."""
    if error is None:
        return False
    lacks = isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)
    return lacks or _is_out_of_memory(error.__context__)


class Captures:
    """The graphs that are captured while an engine is idle, before steps ask for them."""

    def __init__(
        self,
        waiting: Iterable[Late[object]] = (),
        families: Iterable[Sequence[Late[object]]] = (),
        taken: CaptureTime | None = None,
    ) -> None:
        """Nothing is captured yet.

        Args:
            waiting: captured in this order, unless a step is quicker.
            families: graphs that most engines do not need. Once a step has asked for one of a family, the others wait,
                too: the next step may run in another shape.
            taken: counts the time of all captures; None for a counter of its own.
        """
        self._waiting = list(waiting)[::-1]
        self._families = list(families)
        self._taken = taken or CaptureTime()

    @property
    def seconds(self) -> float:
        """How long captures have taken so far, those of steps included."""
        return self._taken.seconds

    @property
    def left(self) -> int:
        """How many graphs wait. Any thread may ask."""
        asked = [family for family in [*self._families] if any(late.tried for late in family)]
        return sum([not late.tried for late in chain([*self._waiting], *asked)])

    def capture_all(self) -> None:
        """Capture the rest."""
        while self.capture_next():
            pass

    def capture_next(self) -> bool:
        """Capture one more. False if all are."""
        while self._waiting:
            late = self._waiting.pop()
            if not late.tried:
                late.find()
                return True
        for family in [family for family in self._families if any(late.tried for late in family)]:
            self._families.remove(family)
            self._waiting += family[::-1]
        return bool(self._waiting) and self.capture_next()


class _Stages:
    """Copies of a message in pinned memory, used in turn. The host and the device each count their own turns.

    Attributes:
        memory: [stages, words] int64.
        turn: [1] int32 on the device, the stage that its next launch uses.
    """

    def __init__(self, words: int, device: torch.device) -> None:
        """Create stages for messages of ``words`` int64."""
        self.memory, self.turn = _pinned(words), torch.zeros(1, dtype=torch.int32, device=device)
        self._used = 0

    @property
    def current(self) -> int:
        """The stage of the next launch, as the host counts them."""
        return self._used % _STAGES

    def pass_on(self) -> None:
        """Go on to the next stage, once a launch will use this one."""
        self._used += 1


class _StagedGraph:
    """A graph that begins by taking a message from pinned memory, so that one call of the driver launches it."""

    def __init__(self, words: int, device: torch.device) -> None:
        """Create stages for messages of ``words`` int64. The graph is captured by `_record`."""
        self._stages = _Stages(words, device)
        self._arrays = [stage.numpy() for stage in self._stages.memory]

    def _record(self, recorder: Recorder, work: Callable[[Tensor, Tensor], _T]) -> _T:
        """Capture the graph, whose work takes the message from these stages, by this turn."""
        self._graph, result = recorder.record(lambda: work(self._stages.memory, self._stages.turn))
        return result

    def launch(self, fill: Callable[[np.ndarray], object]) -> None:
        """Let ``fill`` write the message, and launch the graph with it."""
        fill(self._arrays[self._stages.current])
        self._graph.replay()
        self._stages.pass_on()


class InputGraph(_StagedGraph):
    """A graph whose work reads its inputs from the device.

    Attributes:
        tensor: the inputs, [words] int64, as the graph's work reads them. All zero until the first launch.
    """

    def __init__(self, words: int, device: torch.device, *, behind: int = 0) -> None:
        """Allocate the inputs. The graph is captured by `record`. A message has ``behind`` int64 behind the inputs."""
        super().__init__(words + behind, device)
        self.tensor = torch.zeros(words, dtype=torch.int64, device=device)

    def record(self, recorder: Recorder, work: Callable[[], _T]) -> _T:
        """Capture the graph, whose work reads `tensor`."""

        def receive_and_work(stages: Tensor, turn: Tensor) -> _T:
            self._receive(stages, turn)
            return work()

        return self._record(recorder, receive_and_work)

    def _receive(self, stages: Tensor, turn: Tensor) -> None:
        from draftline.kernels.triton.pinned import receive  # only GPUs have Triton

        receive(stages, turn, self.tensor)


class WritingInputGraph(InputGraph):
    """An `InputGraph` that also begins with a few writes, as a `WriteGraph` does them: behind the inputs."""

    def __init__(self, words: int, write_words: int, out: Tensor) -> None:
        """Allocate inputs of ``words``. The writes' part of a message has ``write_words``, and ``out`` the places."""
        super().__init__(words, out.device, behind=write_words)
        self._out = out

    @override
    def _receive(self, stages: Tensor, turn: Tensor) -> None:
        from draftline.kernels.triton.pinned import receive_with_writes  # only GPUs have Triton

        receive_with_writes(stages, turn, self.tensor, self._out)


class WriteGraph(_StagedGraph):
    """A graph of one kernel, which writes a few words to their places on the device."""

    def __init__(self, words: int, out: Tensor, recorder: Recorder) -> None:
        """Capture it. A message has so many int64, as `receive_writes` reads them, and ``out`` the places."""
        from draftline.kernels.triton.pinned import receive_writes  # only GPUs have Triton

        super().__init__(words, out.device)
        self._record(recorder, lambda stages, turn: receive_writes(stages, turn, out))


class ResultStages:
    """Pinned memory to which graphs copy a step's tokens, in turns. All graphs that sample share it."""

    def __init__(self, samples: int, rows: int, moments: int, device: torch.device) -> None:
        """Create stages for steps of at most so many samples and rows, and of so many moments."""
        self._samples, self._stages = samples, _Stages(samples + rows + moments, device)
        self._parts = [stage.split((samples, rows, moments)) for stage in self._stages.memory]

    def deliver(self, tokens: Tensor, accepted: Tensor, moments: Tensor) -> None:
        """Copy a step's samples, how many of them each row keeps, and its moments, the last of which is now.

        A part of a graph.
        """
        from draftline.kernels.triton.pinned import deliver  # only GPUs have Triton

        deliver(tokens, accepted, moments, self._stages.memory, self._stages.turn, self._samples)

    def take(self, samples: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """The copies that the graph that was launched last makes, there once it has run: [samples], [rows], [moments].

        They are valid until as many steps as there are stages have been launched.
        """
        tokens, accepted, moments = self._parts[self._stages.current]
        self._stages.pass_on()
        return tokens[:samples], accepted[:rows], moments


def _pinned(words: int) -> Tensor:
    return torch.zeros((_STAGES, words), dtype=torch.int64, pin_memory=True)


@dataclass(frozen=True, slots=True)
class _Memory:
    """A piece of device memory, as `torch.as_tensor` reads it (https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html)."""

    __cuda_array_interface__: dict[str, object]


def unowned(tensor: Tensor) -> Tensor:
    """A view of a contiguous tensor's memory that does not keep the memory from being used again."""
    whole = {"shape": tuple(tensor.shape), "typestr": f"<i{tensor.element_size()}", "version": 3}
    memory = _Memory(whole | {"data": (tensor.data_ptr(), False)})
    return torch.as_tensor(memory, device=tensor.device).view(tensor.dtype)
