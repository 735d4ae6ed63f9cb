"""``KernelCompileWorkers``: processes that compile Triton kernels. Each runs this module, ``python -m ... FD PROCESSES NICENESS``.

The first process loads torch, Triton and the kernels. Then, still without threads or a device, it forks the others. All
receive jobs from one socket; each job goes to one of them, which leaves the compiled kernel in Triton's cache on disk and sends
back the job's number. They end when the other end is closed, or no job is left and none will come. So none outlives its parent by
more than one compilation. The first launch compiles the rest, such as kernels that failed or whose process died.

The parent needs neither torch nor Triton.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from json import dumps, loads
from pathlib import Path

logger = logging.getLogger(__name__)

_LIMIT_S = 60.0
"""Seconds without a compiled kernel after which waiting for the processes ends."""

_MAX_PROCESSES = 16
_MAX_JOB_BYTES = 1 << 17
"""The largest message that a socket takes."""
_MAX_NUMBER_BYTES = 32


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
        self._sent = 0
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
        """Send a job. The first has number 0, the next 1."""
        with suppress(OSError):  # the processes have ended or are stuck: `compiled` logs it
            self._jobs.send(dumps([self._sent, asdict(job)]).encode())
        self._sent += 1

    def compiled(self) -> Iterator[int]:
        """The numbers of the jobs, each once its kernel is compiled. No job can be sent any more.

        Those are left out that failed, or were not compiled before the processes ended or had taken too long.
        """
        try:
            with suppress(OSError):  # the processes have ended
                self._jobs.shutdown(socket.SHUT_WR)
            while number := self._jobs.recv(_MAX_NUMBER_BYTES):
                yield int(number)
            code = self._process.wait(_LIMIT_S)
        except (TimeoutError, subprocess.TimeoutExpired):
            logger.warning("the processes that compile kernels take too long; the rest is compiled here")
        except OSError:  # `stop` has closed the socket
            pass
        else:
            if code and not self._stopped:
                logger.warning("the processes that compile kernels ended with %d; the rest is compiled here", code)
        finally:
            self.stop()

    def stop(self) -> None:
        """End the processes at once, also while another thread waits in `compiled`. Idempotent."""
        self._stopped = True
        with suppress(OSError):  # it is closed, or the processes have ended
            self._jobs.shutdown(socket.SHUT_RDWR)  # unlike closing it, this wakes a thread that waits for a message
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._jobs.close()


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
    """Compile jobs in ``processes`` processes until the other end of the socket has no more, or is closed."""
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
            number, job = loads(message)
            if _compile(CompileJob(**job)):
                try:
                    jobs.send(str(number).encode())
                except OSError:  # the other end is closed
                    break
    for child in children:
        os.waitpid(child, 0)


def _compile(job: CompileJob) -> bool:
    """Compile a kernel. False if it does not compile."""
    from triton.runtime import driver

    driver.set_active(_CompilerDriver(job.capability))
    try:
        getattr(import_module(job.module), job.name).preload(job.specialization)
    except Exception:  # the first launch raises the same error
        logger.exception("%s.%s does not compile", job.module, job.name)
        return False
    return True


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    os._exit(0)  # without taking down all of torch, which the parent would wait for
