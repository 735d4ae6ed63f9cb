"""Compiling a start's kernels concurrently: a rehearsal finds the kernels that the work will launch for the first time.

Triton compiles a kernel at its first launch, one after the other. A start launches some eighty. On a machine that has never
run them, compiling takes longer than everything else. Threads gain nothing, as too much of a compilation holds Python's
lock. So processes compile (`kernels/compile_workers.py`), and leave the results in Triton's cache on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any

import torch
from triton import knobs
from triton.runtime.cache import triton_key

import draftline.kernels.triton.ops  # noqa: F401  no other thread imports Triton's modules while `triton_key` does
from draftline.kernels.compile_workers import CompileJob, KernelCompileWorkers, nothing_compiled

_FEW = 4
"""This many kernels are compiled before the processes have loaded torch."""


class _Pending:
    """A placeholder for a kernel that is not compiled yet: launching it does nothing."""

    function = packed_metadata = None

    def run(self, *_: object) -> None:
        """Launch nothing."""

    def launch_metadata(self, *_: object) -> None:
        """No metadata for profilers."""


@dataclass(frozen=True, slots=True)
class MissingKernel:
    """A kernel that was launched and is not compiled.

    Attributes:
        function: Triton's JITFunction.
        job: the function's variant.
        signature: the types of its arguments in order, which decide the module that launches it.
        variants: the function's compiled variants, by key.
        key: this one's.
    """

    function: Any
    job: CompileJob
    signature: tuple[str, ...]
    variants: dict[str, object]
    key: str

    @staticmethod
    def replaced(key: str, fn: Any, compile: dict[str, Any], capability: int) -> MissingKernel:
        """Put a placeholder where Triton looks for the kernel; the arguments are those of Triton's ``jit_cache_hook``."""
        function = fn.jit_function
        variants = function.device_caches[compile["device"]][0]
        variants[key] = _Pending()
        job = CompileJob(str(fn.module), str(fn.name), compile["specialization_data"], capability)
        # Descriptors of all block sizes are passed alike.
        signature = tuple(str(kind).partition("[")[0] for kind in compile["signature"].values())
        return MissingKernel(function, job, signature, variants, key)

    def restore(self) -> None:
        """Remove the placeholder, unless another engine's thread has loaded the kernel meanwhile."""
        if isinstance(self.variants.get(self.key), _Pending):
            del self.variants[self.key]

    def load(self) -> None:
        """Load the kernel from Triton's cache, or compile it if it is not there."""
        compiled = self.function.preload(self.job.specialization)
        _ = compiled.run  # the launcher, which Triton builds at the first access


class CompileAhead:
    """Compiles a start's kernels for one device before they are launched.

    Attributes:
        missing: whether this machine lacks a kernel: Triton's cache is empty, or one was not found there. Until then, the other
            kernels are probably compiled too, and need no rehearsal.
        postponed: kernels that `load` leaves to `CompileLater`.
    """

    def __init__(self, device: torch.device, workers: KernelCompileWorkers | None = None) -> None:
        """For ``device``, with ``workers`` if they were started already, since Triton's cache is empty.

        If it is empty and there are none, they start at once, to be ready when jobs come.
        """
        self._workers = KernelCompileWorkers.start_if_useful() if workers is None and nothing_compiled() else workers
        # Reads all of Triton's files and caches the result, half a second that the model's loading can have at the same time.
        self._key = Thread(target=triton_key, name="draftline-triton", daemon=True)
        self._key.start()
        self.missing = self._workers is not None
        self.postponed: list[MissingKernel] = []
        self._postponing = False
        self._device = device
        major, minor = torch.cuda.get_device_capability(device)
        self._capability = 10 * major + minor
        self._found: list[MissingKernel] = []

    def close(self) -> None:
        """Stop compiling. Idempotent."""
        if self._workers is not None:
            self._workers.stop()

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Run no launch of this context, and let other processes compile the kernels that are missing.

        Code in it must neither wait for the device nor read its results. No other thread may launch kernels meanwhile, but may
        load them. Once only.

        Raises:
            Exception: the first missing kernel does not compile; Triton's own error.
        """
        self._key.join()
        hooks = knobs.runtime.jit_cache_hook, knobs.compilation.listener
        knobs.runtime.jit_cache_hook, knobs.compilation.listener = self._launched, self._compiled
        try:
            with never_run(self._device):
                yield
        finally:
            knobs.runtime.jit_cache_hook, knobs.compilation.listener = hooks
            for kernel in (*self._found, *self.postponed):
                kernel.restore()

    @contextmanager
    def postponing(self) -> Iterator[None]:
        """In a rehearsal: what this context is the first to launch need not be compiled before the engine serves."""
        self._postponing = True
        try:
            yield
        finally:
            self._postponing = False

    def load(self) -> None:
        """Wait until the kernels of the rehearsal are compiled, and load them.

        Raises:
            Exception: a kernel does not compile; Triton's own error.
        """
        _load(self._device, self._found, self._workers.compiled() if self._workers is not None else ())
        self._found.clear()

    def _launched(self, *, key: str, fn: Any, compile: dict[str, Any], is_manual_warmup: bool, **_: object) -> bool:
        """Triton's ``jit_cache_hook``: returns whether to skip compiling a kernel at its first launch."""
        if is_manual_warmup:  # by `preload`
            return False
        if not self.missing:
            fn.jit_function.preload(compile["specialization_data"])  # from the cache, if it is there; calls `_compiled`
            return True
        kernel = MissingKernel.replaced(key, fn, compile, self._capability)
        if self._postponing:
            self.postponed.append(kernel)
            return True
        self._found.append(kernel)
        if self._workers is not None:
            self._workers.compile(kernel.job)
        elif len(self._found) == _FEW + 1:
            self._start_workers()
        return True

    def _compiled(self, *, cache_hit: bool, **_: object) -> None:
        """Triton's compilation listener."""
        self.missing |= not cache_hit

    def _start_workers(self) -> None:
        self._workers = KernelCompileWorkers.start_if_useful()
        if self._workers is not None:
            for kernel in self._found:
                self._workers.compile(kernel.job)


def _load(device: torch.device, kernels: Sequence[MissingKernel], compiled: Iterable[int]) -> None:
    """Load kernels from Triton's cache, and compile those that are not there.

    Threads help here: Triton builds a C module for each kernel's arguments, and waits for the C compiler.

    Args:
        device: where to load them.
        kernels: what to load.
        compiled: the places in ``kernels`` of those that other processes compile, each once it is in the cache.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    left = dict(enumerate(kernels))
    with ThreadPoolExecutor(initializer=lambda: torch.cuda.set_device(index)) as pool:
        first: dict[tuple[str, ...], Future[None]] = {}

        def begin(kernel: MissingKernel) -> Future[None]:
            # The first kernel of a signature builds the module, and the others find it: no two threads build the same one.
            builder = first.get(kernel.signature)
            task = pool.submit(kernel.load if builder is None else partial(_load_after, builder, kernel))
            first.setdefault(kernel.signature, task)
            return task

        begun = [begin(left.pop(place)) for place in compiled]
        for done in (*begun, *map(begin, left.values())):
            done.result()


def _load_after(earlier: Future[None], kernel: MissingKernel) -> None:
    earlier.result()
    kernel.load()


@contextmanager
def never_run(device: torch.device) -> Iterator[None]:
    """Capture launches and discard them: kernels that are compiled already must not run either."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream), torch.inference_mode():
        # Relaxed: libraries may initialise at their first use.
        graph.capture_begin(capture_error_mode="relaxed")
        torch.zeros(1, device=device)  # a graph without a launch would make torch warn
        try:
            yield
        finally:
            graph.capture_end()
    del graph
    torch.cuda.empty_cache()
