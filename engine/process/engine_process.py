"""``EngineProcess``: an engine in a process of its own (`worker.py`), as the server's process sees it."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import override

from draftline.engine.cache_journal import CacheJournal, JournalReader
from draftline.engine.config import EngineConfig
from draftline.engine.errors import EngineStoppedError
from draftline.engine.outputs import Failed, Update
from draftline.engine.process.log_format import LogFormat
from draftline.engine.process.message_socket import MessageSender, MessageSocket
from draftline.engine.process.messages import (
    CacheChanges,
    Cancel,
    Close,
    Command,
    CommandName,
    FollowCache,
    FromEngine,
    LoadModel,
    Opened,
    Reply,
    Start,
    Started,
    Stopped,
    Submit,
    ToEngine,
    Updates,
)
from draftline.engine.process.placement import Load
from draftline.engine.protocol import EngineInfo, Sink
from draftline.engine.request.engine_request import EngineRequest
from draftline.engine.stats import EngineStats
from draftline.models.config import ModelConfig

logger = logging.getLogger(__name__)

_MessageT = TypeVar("_MessageT", Opened, Started)

_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}
"""Variables that the process has unless they are set here. Without a workspace for parts of sums, the vendor's library
splits none, so that more of its products have our bits (`kernels/triton/linear/vendor.py`)."""

CLOSE_S = 10.0
"""Seconds in which the process must end when it is closed. Supervisors allow a server little more than its drain."""


@dataclass(slots=True)
class _Live:
    """A request in flight.

    Attributes:
        sink: receives its updates.
        outputs: those that have not ended.
        uncached: tokens of its prompt that the process is likely to compute, until it has.
    """

    sink: Sink
    outputs: int
    uncached: int


class _RemoteJournal(CacheJournal):
    """A copy of the engine process's journal, which that process sends once there is a reader."""

    def __init__(self, ask: Callable[[], object]) -> None:
        """``ask`` asks the process to send it."""
        super().__init__()
        self._ask: Callable[[], object] | None = ask

    @override
    def follow(self, wake: Callable[[], object]) -> JournalReader:
        reader = super().follow(wake)
        ask, self._ask = self._ask, None
        if ask is not None:
            ask()
        return reader


class EngineProcess:
    """The engine process and the requests that it has.

    Requests come validated, tokenized and compiled. Only that process knows whether its queue is full, so
    `QueueFullError` comes as an update. It reports the contents of its prefix cache from the first reader of `journal`
    on.

    Attributes:
        process: the engine process.
        connection: the connection to it. If the connection breaks, the process ends.
        journal: the contents of its prefix cache.
        stopped: done when the engine has ended. The result is None after a close, or the fault that ended the engine.
        info: the model and the engine's limits, once `start` has returned.
    """

    info: EngineInfo

    def __init__(
        self,
        config: EngineConfig,
        *,
        log_level: str,
        log_format: LogFormat,
        worker: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        """Start the process, which begins to import torch; `load_model` lets it go on.

        Args:
            config: the engine's options.
            log_level: what it logs.
            log_format: how it does.
            worker: the module that it runs, and arguments for it before the connection's.
            environment: variables that the process has besides this one's.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            # Without the current directory on the path: it may have modules that hide others (-P).
            command = (sys.executable, "-P", "-m", *worker, str(theirs.fileno()))
            self.process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), env={**_ENVIRONMENT, **os.environ, **environment}
            )
        self.connection = MessageSocket(ours)
        self.journal: CacheJournal = _RemoteJournal(lambda: self._send(FollowCache()))
        self.stopped: Future[EngineStoppedError | None] = Future()
        self._sender = MessageSender(self.connection)
        self._lock = threading.Lock()
        self._live: dict[str, _Live] = {}
        self._outputs = self._uncached = 0  # of all live requests
        self._closing = False
        self._closes_by = 0.0
        self._commands: dict[int, Future[Any]] = {}
        self._serials = count()
        self._reader = threading.Thread(target=self._read, name="draftline-engine", daemon=True)
        self._send(Start(config, log_level, log_format))

    def load_model(self) -> None:
        """Let the process load the model, whose files are there; `opened` and `start` wait for it."""
        self._send(LoadModel())

    def opened(self) -> ModelConfig:
        """Wait until the process has read the model's configuration.

        Raises:
            ModelLoadError: it cannot be read.
            EngineStoppedError: the process ended before it could say why.
        """
        return self._receive(Opened).config

    def start(self) -> None:
        """Wait until the process serves.

        Raises:
            ModelLoadError: the model cannot be loaded, or served with these options.
            EngineStoppedError: the process ended before it could say why.
        """
        started = self._receive(Started)
        self.info, self._stats = started.info, started.stats
        self._reader.start()

    def submit(self, request: EngineRequest, sink: Sink, uncached: int) -> None:
        """Queue a request whose id no live request has.

        Args:
            request: the request.
            sink: receives its updates.
            uncached: tokens of its prompt that are probably not in the cache; see `load`.

        Raises:
            EngineStoppedError: the engine is stopping or has stopped.
        """
        outputs = request.sampling.n
        with self._lock:
            if self.has_ended:
                raise EngineStoppedError("the engine is stopping and takes no new requests")
            self._live[request.request_id] = _Live(sink, outputs, uncached)
            self._outputs += outputs
            self._uncached += uncached
        self._send(Submit(request))

    def cancel(self, request_id: str) -> bool:
        """End a request. Returns whether it was running here."""
        if request_id not in self._live:
            return False
        self._send(Cancel(request_id))
        return True

    def has(self, request_id: str) -> bool:
        """Whether a request is running here."""
        return request_id in self._live

    @property
    def has_ended(self) -> bool:
        """Whether the engine is stopping or has stopped."""
        return self._closing or self.stopped.done()

    @property
    def load(self) -> Load:
        """What it has in progress."""
        return Load(self._outputs, self._uncached)

    @property
    def has_work(self) -> bool:
        """Whether a request is running here, also one that the process has not noticed."""
        return bool(self._live)

    def stats(self) -> EngineStats:
        """The engine's state as last reported, a fraction of a second ago."""
        return self._stats

    def begin_close(self) -> None:
        """Let it stop after the step in progress; unfinished requests fail with `EngineStoppedError`. Idempotent."""
        self._closing = True
        self._closes_by = time.monotonic() + CLOSE_S
        self._send(Close())

    def close(self) -> None:
        """Wait until it has stopped, once that has begun, and kill it if it stalls. Idempotent."""
        try:
            self.process.wait(max(0.0, self._closes_by - time.monotonic()))
        except subprocess.TimeoutExpired:
            logger.warning("the engine's process did not end within %g s and was killed", CLOSE_S)
            self.process.kill()
            self.process.wait()
        self._reader.join(CLOSE_S)  # the connection has ended with the process
        self.connection.close()

    def abandon(self) -> None:
        """End a process that has not started to serve."""
        self.process.kill()
        self.process.wait()
        self.connection.close()

    def _receive(self, expected: type[_MessageT]) -> _MessageT:
        """Receive the next message, before the reading thread runs."""
        try:
            message = self.connection.receive()
        except (EOFError, OSError):
            code = self.process.wait()
            raise EngineStoppedError(f"the engine's process ended with {code} before it was ready") from None
        if isinstance(message, Stopped):
            self.process.wait()
            assert message.error is not None
            raise message.error
        assert isinstance(message, expected)
        return message

    def _send(self, message: ToEngine) -> None:
        """Send a message. If the process has ended, the reading thread notices and fails all requests."""
        with suppress(OSError):
            self._sender.send(message)

    def run(self, command: CommandName, path: Path | None = None) -> Future[Any]:
        """Run a method of `EngineClient` between two steps."""
        serial, done = next(self._serials), Future[Any]()
        with self._lock:
            if self.has_ended:
                done.set_exception(EngineStoppedError("the engine has stopped"))
                return done
            self._commands[serial] = done
        self._send(Command(serial, command, path))
        return done

    def _read(self) -> None:
        try:
            end = self._receive_until_end()
        except Exception as error:
            logger.critical("the messages of the engine's process are not read any more", exc_info=True)
            end = EngineStoppedError(f"the engine's messages are not read after a fault: {error!r}")
        self._end(end)

    def _receive_until_end(self) -> Exception | None:
        """Carry out the messages of the process. Returns why it has ended; None after a close."""
        while True:
            try:
                message: FromEngine = self.connection.receive()
            except (EOFError, OSError):
                if self._closing:
                    return None
                return EngineStoppedError(f"the engine's process ended with {self.process.wait()}")
            match message:
                case Updates():
                    self._deliver(message)
                case CacheChanges():
                    self.journal.copy(message.everything, message.events)
                case Reply():
                    self._resolve(message)
                case Stopped():
                    return message.error

    def _deliver(self, updates: Updates) -> None:
        """Call each sink once, with all of its updates."""
        if updates.stats is not None:
            self._stats = updates.stats
        by_sink: dict[Sink, list[tuple[str, Update]]] = defaultdict(list)
        for request_id, update in updates:
            live = self._live.get(request_id)
            if live is None:
                continue
            by_sink[live.sink].append((request_id, update))
            if live.uncached or update.ends_output or update.ends_request:
                self._note(request_id, live, update)
        for sink, pairs in by_sink.items():
            sink(pairs)

    def _note(self, request_id: str, live: _Live, update: Update) -> None:
        """Note that a request's prompt has been computed, and that outputs have ended."""
        ended = live.outputs if update.ends_request else int(update.ends_output)
        with self._lock:
            self._uncached -= live.uncached
            self._outputs -= ended
            live.uncached = 0
            live.outputs -= ended
            if not live.outputs:
                del self._live[request_id]

    def _resolve(self, reply: Reply) -> None:
        done = self._commands.pop(reply.serial)
        if done.set_running_or_notify_cancel():
            if reply.error is None:
                done.set_result(reply.result)
            else:
                done.set_exception(reply.error)

    def _end(self, error: Exception | None) -> None:
        """Fail all requests and commands in flight, and resolve `stopped`."""
        why = error if isinstance(error, EngineStoppedError) or error is None else EngineStoppedError(str(error))
        with self._lock:
            self._closing = True
            live, self._live = self._live, {}
            self._outputs = self._uncached = 0
            self._stats = self._stats.ended()
            commands, self._commands = self._commands, {}
        failure = why or EngineStoppedError("the engine stopped before the request was finished")
        for request_id, request in live.items():
            request.sink([(request_id, Failed(failure))])
        for done in commands.values():
            if done.set_running_or_notify_cancel():
                done.set_exception(failure)
        self.stopped.set_result(why)
