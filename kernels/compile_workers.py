"""``KernelCompileWorkers``: processes that compile Triton kernels.

The first one runs this module, with the arguments of `main`.

The first process loads torch, Triton and the kernels. Then, still without threads or a device, it forks the others. All
receive jobs from one pipe; each job goes to one of them, which leaves the compiled kernel in Triton's cache on disk and
sends the job's number through another pipe. They end with the jobs, or after one compilation if the parent has ended.
The first launch compiles the rest, such as kernels that failed or whose process died.

The parent needs neither torch nor Triton.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from io import FileIO
from json import dumps, loads
from pathlib import Path
from tempfile import TemporaryFile

logger = logging.getLogger(__name__)

_LIMIT_S = 60.0
"""Seconds without a compiled kernel after which waiting for the processes ends."""

_MAX_PROCESSES = 16

# Messages in pipes are short and all of one size: so one goes to one receiver, as a whole. A pipe has room for
# thousands of them, and no side waits for the other. A socket that keeps messages apart has room for ten.
_JOB = struct.Struct("=iqi")
"""A job's number, and where its text begins in a file and how long it is."""
_NUMBER = struct.Struct("=i")
"""The number of a job that is done."""
_NUMBERS_BYTES = 1 << 12


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
        self._stopped = self._waiting = False
        self._sent = 0
        with ExitStack() as failing, ExitStack() as theirs:
            self._texts = failing.enter_context(TemporaryFile(buffering=0))
            jobs, self._jobs = _pipe(theirs, failing)
            self._compiled, compiled = _pipe(failing, theirs)
            passed = (self._texts.fileno(), jobs.fileno(), compiled.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, *map(str, (*passed, processes, niceness))],
                pass_fds=passed,
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
        """Send a job, without waiting for anything. The first has number 0, the next 1."""
        text = dumps(asdict(job)).encode()
        with suppress(OSError, ValueError):  # the processes have ended: `compiled` logs it. Or they were stopped
            start = self._texts.tell()
            self._texts.write(text)
            self._jobs.write(_JOB.pack(self._sent, start, len(text)))
        self._sent += 1

    def compiled(self) -> Iterator[int]:
        """The numbers of the jobs, each once its kernel is compiled. No job can be sent any more.

        Those are left out that failed, or were not compiled before the processes ended or had taken too long.
        """
        if self._stopped:
            return
        self._waiting = True
        self._jobs.close()
        arrival = select.poll()
        arrival.register(self._compiled, select.POLLIN)
        try:
            with self._compiled:
                while arrival.poll(_LIMIT_S * 1000):
                    numbers = self._compiled.read(_NUMBERS_BYTES)
                    if not numbers:
                        break
                    yield from (number for (number,) in _NUMBER.iter_unpack(numbers))
                else:
                    raise TimeoutError
            code = self._process.wait(_LIMIT_S)
        except (TimeoutError, subprocess.TimeoutExpired):
            logger.warning("the processes that compile kernels take too long; the rest is compiled here")
        else:
            if code and not self._stopped:
                logger.warning("the processes that compile kernels ended with %d; the rest is compiled here", code)
        finally:
            self.stop()

    def stop(self) -> None:
        """End the processes at once, also while another thread waits in `compiled`. Idempotent."""
        self._stopped = True
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._texts.close()
        self._jobs.close()
        if not self._waiting:  # else the end of the processes ends the wait
            self._compiled.close()


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[FileIO, FileIO]:
    """The two ends of a pipe, each closed with its stack."""
    receiving, sending = os.pipe()
    return reader.enter_context(FileIO(receiving)), writer.enter_context(FileIO(sending, "w"))


def triton_cache() -> Path:
    """The folder of Triton's cache on disk, as Triton finds it. Does not import Triton."""
    # `Path.home` raises an error for a user without a home folder.
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))


def nothing_compiled() -> bool:
    """Whether Triton's cache on disk is empty, or cannot be read."""
    with suppress(OSError):
        return not any(triton_cache().iterdir())
    return True


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


def main(texts: int, jobs: int, compiled: int, processes: int, niceness: int) -> None:
    """Compile jobs in ``processes`` processes until no more come, or the parent has ended.

    Args:
        texts: descriptor of the file of the jobs' texts.
        jobs: of the pipe that says where they are.
        compiled: of the pipe for the numbers of those that are compiled.
        processes: how many processes.
        niceness: theirs.
    """
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
    while message := os.read(jobs, _JOB.size):
        number, start, size = _JOB.unpack(message)
        if _compile(CompileJob(**loads(os.pread(texts, size, start)))):
            try:
                os.write(compiled, _NUMBER.pack(number))
            except BrokenPipeError:  # the parent has ended
                break
    os.close(compiled)
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
