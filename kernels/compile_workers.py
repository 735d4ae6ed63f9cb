"""``KernelCompileWorkers``: processes that compile Triton kernels. Each is this module run, ``python -m ... FD PROCESSES``.

The first process loads torch, Triton and the kernels, and then forks the others: it has neither threads nor a device yet.
All take orders from one socket, of which each goes to one of them, until its other end is closed and nothing is left on it;
so none outlives the process that started them by more than a compilation. Nothing comes back: what is compiled is in
Triton's cache on disk, and what is not, because it failed or a process died, its first launch compiles.

Who starts them needs neither torch nor Triton for it.
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
"""Seconds after which those who wait for the processes go on without them."""

_MAX_PROCESSES = 16
_MAX_JOB_BYTES = 1 << 17
"""Of an job: a socket takes no larger message."""


@dataclass(frozen=True, slots=True)
class CompileJob:
    """A kernel to compile.

    Attributes:
        module: where it is.
        name: its function's.
        specialization: which variant, as Triton's ``JITFunction.preload`` takes it.
        capability: the compute capability to compile for, as 80 or 90; the same in all orders.
    """

    module: str
    name: str
    specialization: str
    capability: int


class KernelCompileWorkers:
    """The processes, as who starts them sees them. Trouble with them is logged, and nobody's error."""

    def __init__(self, processes: int) -> None:
        """Start so many. They are ready after the seconds that loading torch takes."""
        # Messages keep their bounds, and one goes to one receiver.
        self._jobs, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._jobs.settimeout(_LIMIT_S)
        command = (sys.executable, "-P", "-m", __name__, str(theirs.fileno()), str(processes))
        with theirs, ExitStack() as failing:
            failing.callback(self._jobs.close)
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # NumPy's OpenBLAS would start threads, and forks are for processes without.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,  # a group of their own, so that all can be ended together
            )
            failing.pop_all()

    @staticmethod
    def start_if_useful() -> KernelCompileWorkers | None:
        """As many as there are cores; None where there is one, or they cannot be started."""
        cores = len(os.sched_getaffinity(0))
        if cores == 1:
            return None
        try:
            return KernelCompileWorkers(min(cores, _MAX_PROCESSES))
        except OSError as error:
            logger.warning("no processes to compile kernels: %s", error)
            return None

    def compile(self, job: CompileJob) -> None:
        """Let one of them compile it."""
        with suppress(OSError):  # they have ended, or do not take anything: `finish` says so
            self._jobs.send(dumps(asdict(job)).encode())

    def finish(self) -> None:
        """Wait until all orders are done."""
        self._jobs.close()
        try:
            code = self._process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            logger.warning("the processes that compile kernels take too long; what they leave is compiled here")
            self.stop()
        else:
            if code:
                logger.warning(
                    "the processes that compile kernels ended with %d; what they left is compiled here", code
                )

    def stop(self) -> None:
        """End them, whatever they are at. Idempotent."""
        self._jobs.close()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def nothing_compiled() -> bool:
    """Whether Triton's cache on disk has nothing at all."""
    home = os.environ.get("TRITON_HOME") or Path.home()
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))
    return not folder.is_dir() or not any(folder.iterdir())


class _CompilerDriver:
    """As much of a Triton driver as compiling takes."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_device(self) -> int:
        """There is none, and nobody asks it anything."""
        return 0

    def get_current_target(self) -> object:
        """What is compiled for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)


def main(descriptor: int, processes: int) -> None:
    """Compile what is ordered, in so many processes, until there is nothing more."""
    from triton.runtime.cache import triton_key

    import draftline.kernels.triton.ops  # noqa: F401  once for all

    triton_key()  # reads all of Triton's files; remembered
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
    except Exception:  # whoever launches it will get the same error
        logger.exception("%s.%s does not compile", job.module, job.name)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
