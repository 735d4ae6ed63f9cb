"""Compiling many kernels at once: those that some work will launch for the first time, found by rehearsing it.

Triton compiles a kernel when it is first launched, one after the other. A start launches some fifty, and on a machine that
has never run them waits longer for the compiler than for all else. Threads gained nothing, as too much of a compilation
holds Python's lock: processes share it (`kernels/compile_workers.py`), and leave what they make in Triton's cache on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from triton import knobs

from draftline.kernels.compile_workers import CompileJob, KernelCompileWorkers, nothing_compiled

_FEW = 4
"""So many kernels are compiled before the processes, which have to load torch first, could begin."""


class _Pending:
    """Stands in for a kernel that is not compiled yet: it can be launched, and does nothing."""

    function = packed_metadata = None

    def run(self, *_: object) -> None:
        """Launch nothing."""

    def launch_metadata(self, *_: object) -> None:
        """What profilers are told."""


@dataclass(frozen=True, slots=True)
class _Missing:
    """A kernel that was launched and is not compiled.

    Attributes:
        function: Triton's JITFunction.
        job: what says which of its variants.
        variants: the function's compiled variants, by key.
        key: this one's.
    """

    function: Any
    job: CompileJob
    variants: dict[str, object]
    key: str


class CompileAhead:
    """What a start launches on one device is compiled before it is launched.

    Attributes:
        missing: whether a kernel was found that the machine had not compiled. As long as all were compiled before, the
            others presumably were, too, and need no rehearsal.
    """

    def __init__(self, device: torch.device, workers: KernelCompileWorkers | None = None) -> None:
        """For ``device``, with ``workers`` if they were started already.

        Where nothing was ever compiled, they start at once: they are ready when there is work for them.
        """
        self.missing = False
        self._device = device
        major, minor = torch.cuda.get_device_capability(device)
        self._capability = 10 * major + minor
        self._found: list[_Missing] = []
        self._workers = KernelCompileWorkers.start_if_useful() if workers is None and nothing_compiled() else workers

    def close(self) -> None:
        """Compile nothing more. Idempotent."""
        if self._workers is not None:
            self._workers.stop()

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Nothing that is launched in this context runs; at its end all its kernels are compiled.

        What runs in it must not wait for the device, nor read what it computes. Once only.

        Raises:
            Exception: a kernel does not compile, as Triton says it.
        """
        hooks = knobs.runtime.jit_cache_hook, knobs.compilation.listener
        knobs.runtime.jit_cache_hook, knobs.compilation.listener = self._launched, self._compiled
        try:
            with _never_run(self._device):
                yield
        finally:
            knobs.runtime.jit_cache_hook, knobs.compilation.listener = hooks
            for kernel in self._found:
                del kernel.variants[kernel.key]
        if self._workers is not None:
            self._workers.finish()
        self._load()

    def _launched(self, *, key: str, fn: Any, compile: dict[str, Any], is_manual_warmup: bool, **_: object) -> bool:
        """Triton's ``jit_cache_hook``: whether it shall not compile a kernel that is launched for the first time."""
        if is_manual_warmup:  # by `preload`
            return False
        function, data = fn.jit_function, compile["specialization_data"]
        if not self.missing:
            function.preload(data)  # from the cache, if it is there: `_compiled` hears of it
            return True
        variants = function.device_caches[compile["device"]][0]
        variants[key] = _Pending()
        job = CompileJob(str(fn.module), str(fn.name), data, self._capability)
        self._found.append(_Missing(function, job, variants, key))
        if self._workers is not None:
            self._workers.compile(job)
        elif len(self._found) == _FEW + 1:
            self._start_workers()
        return True

    def _compiled(self, *, cache_hit: bool, **_: object) -> None:
        """Triton's listener to compilations."""
        self.missing |= not cache_hit

    def _start_workers(self) -> None:
        self._workers = KernelCompileWorkers.start_if_useful()
        if self._workers is not None:
            for kernel in self._found:
                self._workers.compile(kernel.job)

    def _load(self) -> None:
        """Take what was found from Triton's cache, or compile what is not there after all.

        Threads help here: Triton makes a module in C for each kernel's arguments, and waits for the C compiler.
        """
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        with ThreadPoolExecutor(initializer=lambda: torch.cuda.set_device(index)) as pool:
            for done in [pool.submit(_loaded, kernel) for kernel in self._found]:
                done.result()
        self._found.clear()


def _loaded(kernel: _Missing) -> None:
    compiled = kernel.function.preload(kernel.job.specialization)
    _ = compiled.run  # what launches it, which Triton makes when it is asked for


@contextmanager
def _never_run(device: torch.device) -> Iterator[None]:
    """Record what is launched, and throw it away: kernels that are compiled already must not run, either."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream), torch.inference_mode():
        # Relaxed: what sets itself up at its first use may do so.
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            yield
        finally:
            graph.capture_end()
    del graph
    torch.cuda.empty_cache()
