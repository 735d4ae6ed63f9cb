"""Compiling kernels that a request may ask for one day, while the engine already serves.

A start compiles what every request launches (`ahead.py`). Top-p, penalties or log-probabilities need further kernels. They
are found at the start, and compiled by other processes behind it, so that the first such request neither waits for the
compiler nor makes the other requests of its step wait.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Iterator, Sequence
from threading import Event, Thread

import torch

from draftline.kernels.compile_workers import KernelCompileWorkers
from draftline.kernels.triton.compile.ahead import MissingKernel

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

    def __init__(self, device: torch.device, kernels: Sequence[MissingKernel]) -> None:
        """Those that `CompileAhead` has postponed."""
        self._device, self._kernels = device, kernels
        self._left = len(kernels)
        self._workers: KernelCompileWorkers | None = None
        self._stopping = Event()

    def left(self) -> int:
        """How many are not compiled and loaded yet. Any thread may ask."""
        return self._left

    def start(self) -> None:
        """Begin to compile them."""
        if self._kernels:
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
        """Compile them. Failures are logged: the first launch compiles its kernel."""
        started = time.monotonic()
        try:
            processes = min(max(1, len(os.sched_getaffinity(0)) // _SHARE_OF_CORES), _MOST_PROCESSES)
            self._workers = workers = KernelCompileWorkers(processes, _NICENESS)
            if self._stopping.is_set():  # `_stop` may not have seen them
                workers.stop()
                return
            for kernel in self._kernels:
                workers.compile(kernel.job)
            self._load(workers.compiled())
            if self._stopping.is_set():
                return
            logger.info(
                "%d more kernels compiled in %.1f s", len(self._kernels) - self._left, time.monotonic() - started
            )
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
            self._kernels[number].load()
            self._left -= 1
            time.sleep(_PAUSE_S)
