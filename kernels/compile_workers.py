"""``KernelCompileWorkers``: processes that compile Triton kernels. Each runs this module, ``python -m ... FD PROCESSES NICENESS``.

The first process loads torch, Triton and the kernels. Then, still without threads or a device, it forks the others. All
receive jobs from one socket; each job goes to one of them. They end when the other end is closed and no job is left, so
none outlives its parent by more than one compilation. Nothing is sent back: compiled kernels are in Triton's cache on
disk. The first launch compiles the rest, such as kernels that failed or whose process died.

The parent needs neither torch nor Triton.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from json import dumps, loads
from pathlib import Path

logger = logging.getLogger(__name__)

_LIMIT_S = 60.0
"""Seconds after which waiting for the processes ends."""

_MAX_PROCESSES = 16
_MAX_JOB_BYTES = 1 << 17
"""The largest message that a socket takes."""


@dataclass(frozen=True, slots=True)
class CompileJob:
    """A kernel to compile.

    Attributes:
        module: the kernel's module.
        name: the kernel's function.
        specialization: the variant, as Triton's ``JITFunction.preload`` takes it.
        capability: the compute capability to compile for, as 80 or 90; the same in all jobs.
    """

    module: str
    name: str
    specialization: str
    capability: int


class KernelCompileWorkers:
    """The parent's handle to the processes. Their failures are logged, never raised."""

    def __init__(self, processes: int, niceness: int = 0) -> None:
        """Start ``processes`` processes, which are ready once they have loaded torch, seconds later.

        Args:
            processes: how many.
            niceness: how far they stand back behind other processes for the cores, as nice(2) has it.
        """
        # Messages keep their bounds, and one goes to one receiver.
        self._jobs, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._jobs.settimeout(_LIMIT_S)
        self._stopped = False
        command = (sys.executable, "-P", "-m", __name__, str(theirs.fileno()), str(processes), str(niceness))
        with theirs, ExitStack() as failing:
            failing.callback(self._jobs.close)
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # NumPy's OpenBLAS would start threads, and only a process without threads may fork.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,  # a process group, so that one signal ends all
            )
            failing.pop_all()

    @staticmethod
    def start_if_useful() -> KernelCompileWorkers | None:
        """One process a core; None on one core, or where processes cannot be started."""
        cores = len(os.sched_getaffinity(0))
        if cores == 1:
            return None
        try:
            return KernelCompileWorkers(min(cores, _MAX_PROCESSES))
        except OSError as error:
            logger.warning("no processes to compile kernels: %s", error)
            return None

    def compile(self, job: CompileJob) -> None:
        """Send a job."""
        with suppress(OSError):  # the processes have ended or are stuck: `finish` logs it
            self._jobs.send(dumps(asdict(job)).encode())

    def finish(self) -> bool:
        """Wait until all jobs are done. False if some are not, since the processes failed or took too long."""
        self._jobs.close()
        try:
            code = self._process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            logger.warning("the processes that compile kernels take too long; the rest is compiled here")
            self.stop()
            return False
        if code and not self._stopped:
            logger.warning("the processes that compile kernels ended with %d; the rest is compiled here", code)
        return not code

    def stop(self) -> None:
        """End the processes at once, also while another thread waits in `finish`. Idempotent."""
        self._stopped = True
        self._jobs.close()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def nothing_compiled() -> bool:
    """Whether Triton's cache on disk is empty."""
    home = os.environ.get("TRITON_HOME") or Path.home()
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))
    return not folder.is_dir() or not any(folder.iterdir())


class _CompilerDriver:
    """The part of a Triton driver that compiling needs."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_device(self) -> int:
        """A placeholder: compiling needs no device."""
        return 0

    def get_current_target(self) -> object:
        """The target that kernels are compiled for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)


def main(descriptor: int, processes: int, niceness: int) -> None:
    """Compile jobs in ``processes`` processes until the socket is closed and empty."""
    os.nice(niceness)
    from triton.runtime.cache import triton_key

    import draftline.kernels.triton.ops  # noqa: F401  before forking, so that it is loaded once

    triton_key()  # reads all of Triton's files and caches the result
    children: list[int] = []
    for _ in range(processes - 1):
        child = os.fork()
        if not child:
            children.clear()
            break
        children.append(child)
    with socket.socket(fileno=descriptor) as jobs:
        while message := jobs.recv(_MAX_JOB_BYTES):
            _compile(CompileJob(**loads(message)))
    for child in children:
        os.waitpid(child, 0)


def _compile(job: CompileJob) -> None:
    from triton.runtime import driver

    driver.set_active(_CompilerDriver(job.capability))
    try:
        getattr(import_module(job.module), job.name).preload(job.specialization)
    except Exception:  # the first launch raises the same error
        logger.exception("%s.%s does not compile", job.module, job.name)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
