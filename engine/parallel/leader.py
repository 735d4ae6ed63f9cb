"""``Ranks``: the other ranks of a tensor-parallel engine, processes that rank 0 starts, sends plans to, and watches.

A rank that dies, shows no life for `_SILENT_S`, or lets the others wait for as long, ends the engine: the ranks wait
for one another within every step, so none can go on alone. The watchdog then kills the others, which frees rank 0 from
waiting for them.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from typing_extensions import override

from draftline.engine.config import EngineConfig
from draftline.engine.errors import DeviceLostError
from draftline.engine.parallel.group import RankGroup, meet
from draftline.engine.parallel.messages import Alive, Broken, FromRank, Ready, StartRank
from draftline.engine.parallel.plan_codec import encode
from draftline.engine.parallel.plan_ring import PlanSender
from draftline.engine.parallel.progress import Progress, Stalls
from draftline.engine.request.sequence import Plan, Row
from draftline.engine.runner.ranks import OtherRanks, draft_positions
from draftline.kernels.slots import SlotTable
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.parallel.split import splits
from draftline.spec.drafter import DraftChunk

logger = logging.getLogger(__name__)

_SILENT_S = 4.0
"""Seconds without a sign of life after which a rank that was ready counts as hung; or, if it is alive, without its part
in a step that others wait for."""

_STARVED_S = 30.0
"""The same for a rank that could run, but that a loaded machine may not let run."""

_LOADING = 15.0
"""How much longer both are until all ranks are ready: imports and compilers keep the interpreter's lock."""

_WATCH_S = 0.25
_POLL_S = 0.02
_GRACE_S = 2.0
"""Seconds for the engine to end by itself once a rank is lost. Waiting for a GPU cannot be broken off, so the process
ends."""


class StartedRanks(OtherRanks):
    """The other ranks of an engine from start to end. This one: there are none.

    As a context manager it ends the ranks. An error that the end of a rank has caused is replaced by that one's reason.
    """

    def join(self) -> RankGroup | None:
        """Wait until all ranks have found each other; None if there is only this one."""
        return None

    def wait_until_ready(self) -> None:
        """Wait until all ranks wait for their first step."""

    def __enter__(self) -> Self:
        """The ranks."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close them."""
        self.close()


_DIVIDED = count()
"""How many models this process has divided between GPUs.

torch numbers the meetings of peer memory by process. Rank 0's second meeting would wait forever for the first one of a
new process.
"""


def start_ranks(config: EngineConfig, shape: ModelConfig, device: torch.device) -> StartedRanks:
    """Start the other ranks that an engine needs, if any.

    Args:
        config: the engine's options.
        shape: the model's configuration.
        device: rank 0's.

    Raises:
        ModelLoadError: the model cannot be divided between so many ranks, this process has divided one between GPUs
            before, or no folder for temporary files can be written.
    """
    if config.tensor_parallel_size == 1:
        return StartedRanks()
    splits(shape, config.tensor_parallel_size)
    if device.type == "cuda" and next(_DIVIDED):
        raise ModelLoadError(
            "tensor_parallel_size: a process can divide a model between GPUs once; start another process for the next engine"
        )
    return Ranks(config, device)


class Ranks(StartedRanks):
    """The other ranks of an engine, of which there are some.

    Attributes:
        group: all ranks, this one as rank 0.
    """

    exchange = True
    group: RankGroup

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        """Start a process for each other rank. `join` waits for them.

        Args:
            config: the engine's options.
            device: rank 0's.

        Raises:
            ModelLoadError: no folder for temporary files can be written.
        """
        self._size, self._device = config.tensor_parallel_size, device
        self._folder = _store_folder()
        self._plans = PlanSender(self._size - 1, self.check_alive)
        self._progress = Progress(self._plans.progress, 0)
        self._lost: Exception | None = None
        self._on_lost: Callable[[], None] | None = None  # set once an engine runs
        self._closing = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        for rank in range(1, self._size):
            self._start(config, rank)
        self._seen = [time.monotonic()] * (self._size - 1)
        self._waiting = set(range(self._size - 1))  # for their first step
        self._stalls = Stalls(
            self._plans.progress,
            lambda rank: _can_run(self._processes[rank - 1].pid),
            idle_s=_SILENT_S,
            busy_s=_STARVED_S,
        )
        self._serving = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, name="draftline-ranks", daemon=True)
        self._watchdog.start()

    def _start(self, config: EngineConfig, rank: int) -> None:
        ours, theirs = socket.socketpair()
        wake = self._plans.wakes[rank - 1]
        inherited = (theirs.fileno(), self._plans.memory, wake)
        with theirs:
            # Without the current directory on the path: it may have modules that hide others (-P).
            command = (sys.executable, "-P", "-m", "draftline.engine.parallel.follower", *map(str, inherited))
            self._processes.append(subprocess.Popen(command, pass_fds=inherited))
        connection = Connection(ours.detach())
        self._connections.append(connection)
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()
        message = StartRank(config, rank, str(self._device), str(self._folder / "store"), level)
        connection.send_bytes(pickle.dumps(message))

    @override
    def join(self) -> RankGroup:
        # Nothing breaks off the meeting. It has a thread of its own, which may wait on for a rank that is lost.
        meeting: Future[ProcessGroup] = Future()
        threading.Thread(target=self._meet, args=(meeting,), name="draftline-meeting", daemon=True).start()
        while not meeting.done() and not self._closing.wait(_POLL_S):
            self.check_alive()
        self.group = RankGroup(meeting.result(), self._device, self._progress.advance)
        return self.group

    def _meet(self, meeting: Future[ProcessGroup]) -> None:
        try:
            meeting.set_result(meet(self._folder / "store", 0, self._size))
        except Exception as error:  # noqa: BLE001  who waits for the meeting gets it
            meeting.set_exception(error)

    @override
    def wait_until_ready(self) -> None:
        while not self._serving.wait(_WATCH_S):
            self.check_alive()
        shutil.rmtree(self._folder, ignore_errors=True)

    @override
    def when_lost(self, call: Callable[[], None]) -> None:
        self._on_lost = call
        if self._lost is not None:
            call()

    @override
    def check_alive(self) -> None:
        if self._lost is not None:
            raise self._lost

    @override
    def begin(self, plan: Plan, catch_up: Sequence[DraftChunk] = ()) -> None:
        self.check_alive()
        self._progress.advance()
        self._plans.send(encode(plan, catch_up))

    @override
    def spread_drafts(self, rows: tuple[Row, ...], table: SlotTable) -> None:
        self.group.spread(table.tokens[draft_positions(rows, table)].long().flatten())

    @override
    def spread_tokens(self, tokens: Tensor) -> None:
        self.group.spread(tokens)

    @override
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self._await_watchdog()
        lost = self._lost
        self.close()
        if error is not None and lost is not None and error is not lost:
            raise lost from error

    def _await_watchdog(self) -> None:
        """Give the watchdog time: a rank that has just ended breaks off the sums before it is seen."""
        deadline = time.monotonic() + 2 * _WATCH_S
        while self._lost is None and time.monotonic() < deadline:
            time.sleep(_WATCH_S / 10)

    @override
    def check(self) -> None:
        self._await_watchdog()
        self.check_alive()
        raise DeviceLostError("a step failed on rank 0, and the other ranks cannot go on without it")

    @override
    def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        for connection in self._connections:
            connection.close()  # its process ends
        for process in self._processes:
            try:
                process.wait(_SILENT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._watchdog.join()
        self._plans.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> None:
        """Read the ranks' messages until one is lost, or `close`."""
        while not self._closing.is_set():
            try:
                ready = cast(list[Connection], wait(self._connections, _WATCH_S))
            except OSError:
                return  # closed
            for connection in ready:
                if self._closing.is_set():
                    return
                index = self._connections.index(connection)
                try:
                    message: FromRank = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    if not self._closing.is_set():
                        code = self._processes[index].wait()
                        self._lose(DeviceLostError(f"rank {index + 1} ended with {code}, so the engine cannot go on"))
                    return
                self._seen[index] = time.monotonic()
                match message:
                    case Broken():
                        self._lose(message.error)
                        return
                    case Ready():
                        self._waiting.discard(index)
                        if not self._waiting:
                            self._seen = [time.monotonic()] * len(self._seen)
                            self._serving.set()
                    case Alive():
                        pass
            index = int(np.argmin(self._seen))
            silent = time.monotonic() - self._seen[index]
            patience = 1.0 if self._serving.is_set() else _LOADING
            if silent > patience * (_STARVED_S if _can_run(self._processes[index].pid) else _SILENT_S):
                self._lose(
                    DeviceLostError(f"rank {index + 1} hangs: no sign of life for {silent:.1f} s, so the engine ends")
                )
                return
            stall = self._stalls.find() if self._serving.is_set() else None
            if stall is not None:
                rank, waited = stall
                self._lose(
                    DeviceLostError(f"rank {rank} hangs: the others wait for it for {waited:.1f} s, so the engine ends")
                )
                return

    def _lose(self, error: Exception) -> None:
        """End the other ranks, and let the engine end with ``error``."""
        self._lost = error
        for process in self._processes:
            process.kill()
        if self._on_lost is not None:
            logger.critical("%s", error)  # while the engine starts, its caller gets the error
            self._on_lost()
        if self._device.type == "cuda" and not self._closing.wait(_GRACE_S):
            logger.critical("this process ends, since it may wait for its GPU forever: %s", error)
            os._exit(1)


def _store_folder() -> Path:
    """A folder for the file through which the ranks find each other."""
    try:
        return Path(tempfile.mkdtemp(prefix="draftline-ranks-"))
    except OSError as error:
        raise ModelLoadError(
            f"tensor_parallel_size: the ranks meet in a folder for temporary files, and none can be written (set TMPDIR): "
            f"{error.strerror}"
        ) from error


def _can_run(process: int) -> bool:
    """Whether a thread of the process, or of one that it has started, runs or waits for nothing but a processor."""
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        stats = [(task / "stat").read_text() for task in tasks]
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it ends at this moment
        return False
    return any(stat.rpartition(")")[2].split()[0] == "R" for stat in stats) or any(map(_can_run, children))
