"""Compiling kernels that a request may ask for one day, while the engine already serves.

A start compiles what every request launches (`ahead.py`). Top-p, penalties or log-probabilities need further kernels. They
are recorded at the start, and compiled by other processes behind it, so that the first such request neither waits for the
compiler nor makes the other requests of its step wait.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import torch
from triton import knobs

from draftline.kernels.compile_workers import KernelCompileWorkers
from draftline.kernels.triton.compile.ahead import MissingKernel, capability_of, never_run

logger = logging.getLogger(__name__)

_SHARE_OF_CORES, _MOST_PROCESSES = 4, 8
"""One process for this many cores, and at most so many. Two of a system's cores are often one that they share, and the engine's
own threads need a whole one. More processes slow the engine down and end no sooner."""

_NICENESS = 19
"""The compilers stand back behind the engine's threads, and behind those of other engines on the host."""

_PAUSE_S = 0.005
"""Between two kernels that are loaded. Loading takes the device and Python's lock, which a step needs."""


class CompileLater:
    """Kernels of one device that are compiled in the background."""

    def __init__(self, device: torch.device) -> None:
        """No kernel is recorded."""
        self._left = 0
        self._device = device
        self._capability = capability_of(device)
        self._found: list[MissingKernel] = []
        self._workers: KernelCompileWorkers | None = None
        self._stopping = Event()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Run no launch of this context, and record the kernels that it launches and this process has not loaded.

        Code in it must neither wait for the device nor read its results. No other thread may launch kernels meanwhile, but may
        load them.
        """
        hook = knobs.runtime.jit_cache_hook
        knobs.runtime.jit_cache_hook = self._launched
        try:
            with never_run(self._device):
                yield
        finally:
            knobs.runtime.jit_cache_hook = hook
            for kernel in self._found:
                kernel.restore()
            self._left = len(self._found)

    def left(self) -> int:
        """How many are not compiled and loaded yet. Any thread may ask."""
        return self._left

    def start(self) -> None:
        """Begin to compile what was recorded."""
        if self._found:
            thread = Thread(target=self.run, name="draftline-compile", daemon=True)
            # Python ends daemon threads wherever they are, and a process that loads a kernel then aborts.
            atexit.register(self._stop, thread)
            thread.start()

    def _stop(self, thread: Thread) -> None:
        """End ``thread`` and its processes: the interpreter ends."""
        self._stopping.set()
        if self._workers is not None:
            self._workers.stop()
        thread.join()

    def run(self) -> None:
        """Compile what was recorded. Failures are logged: the first launch compiles its kernel."""
        started = time.monotonic()
        try:
            processes = min(max(1, len(os.sched_getaffinity(0)) // _SHARE_OF_CORES), _MOST_PROCESSES)
            self._workers = workers = KernelCompileWorkers(processes, _NICENESS)
            if self._stopping.is_set():  # `_stop` may not have seen them
                workers.stop()
                return
            for kernel in self._found:
                workers.compile(kernel.job)
            self._load(workers.compiled())
            if self._stopping.is_set():
                return
            logger.info("%d more kernels compiled in %.1f s", len(self._found) - self._left, time.monotonic() - started)
        except Exception:
            logger.exception("kernels could not be compiled in the background")
        finally:
            self._left = 0
            atexit.unregister(self._stop)

    def _load(self, compiled: Iterator[int]) -> None:
        """Load one kernel after the other, so that a step waits for one of them at most.

        Only what is compiled is loaded: compiling here would hold up the steps.
        """
        if self._device.index is not None:
            torch.cuda.set_device(self._device)
        for number in compiled:
            if self._stopping.is_set():
                return
            self._found[number].load()
            self._left -= 1
            time.sleep(_PAUSE_S)

    def _launched(self, *, key: str, fn: Any, compile: dict[str, Any], is_manual_warmup: bool, **_: object) -> bool:
        """Triton's ``jit_cache_hook``: returns whether to skip compiling a kernel at its first launch."""
        if is_manual_warmup:  # by the thread of another engine of this process, which loads what it has recorded
            return False
        self._found.append(MissingKernel.replaced(key, fn, compile, self._capability))
        return True
