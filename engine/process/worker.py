"""The engine process: ``python -m draftline.engine.process.worker FD``, which `EngineProcess` starts.

The server process validates and tokenizes. The engine process runs steps, and sends all updates produced since its last
message in one. Python runs one thread of a process at a time, and sending tokens to hundreds of clients takes it as
long as a step takes the device. With two processes, no step waits for a client.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from draftline.engine.cache_journal import CacheJournal, JournalReader
from draftline.engine.config import EngineConfig
from draftline.engine.outputs import Failed, Update
from draftline.engine.process.message_socket import MessageSocket
from draftline.engine.process.messages import (
    CacheChanges,
    Cancel,
    Close,
    Command,
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
    portable,
)
from draftline.engine.process.startup import keep_heap, runs_on_gpu, start_process
from draftline.engine.request.engine_request import EngineRequest
from draftline.engine.stats import EngineStats
from draftline.kernels.compile_workers import KernelCompileWorkers, nothing_compiled

if TYPE_CHECKING:  # imports torch, which takes seconds
    from draftline.engine.build import Substitutes
    from draftline.engine.threaded_engine import ThreadedEngine

_STATS_S = 0.05
"""Seconds between two reports of the engine's state to the server."""

_COMPILING = 8
"""Threads that wait for constraints to compile."""


class _Outbox:
    """Sends updates, cache changes and replies to the server. Updates that wait share one message, and so do changes.

    The step thread sends updates itself, while it would only wait for the device. Another thread would take turns with
    it, and make it wait where the host is the limit. A thread of the outbox's own sends all else, and the updates for
    which a server that reads too slowly leaves no room.
    """

    def __init__(self, connection: MessageSocket) -> None:
        self._connection = connection
        self._updates: deque[tuple[str, Update]] = deque()
        self._others: deque[FromEngine] = deque()
        self._sending = threading.Lock()
        self._wake = threading.Event()
        self._cache: JournalReader | None = None

    def follow(self, journal: CacheJournal) -> None:
        """Send the contents of the prefix cache, and then each change."""
        self._cache = journal.follow(self._wake.set)
        self._wake.set()

    def put(self, updates: Sequence[tuple[str, Update]]) -> None:
        """Send updates at the next `release`. This is the sink of all requests, called on the step thread."""
        self._updates.extend(updates)

    def release(self) -> None:
        """Send what was put: now as far as that needs no waiting, and the rest on the outbox's own thread.

        The step thread calls it when it has launched a step: sending would slow the launch down.
        """
        if self._updates and self._sending.acquire(blocking=False):
            try:
                if not self._connection.has_unsent:
                    with suppress(OSError):  # the server has ended, and so will this process
                        self._send_updates(None, self._connection.begin)
            finally:
                self._sending.release()
        if self._updates or self._connection.has_unsent:
            self._wake.set()

    def send(self, message: FromEngine) -> None:
        """Send any other message."""
        self._others.append(message)
        self._wake.set()

    def run(self, engine: ThreadedEngine) -> None:
        """Send until the engine has stopped."""
        sent: EngineStats | None = None
        sent_at = 0.0
        while True:
            self._wake.wait(_STATS_S)
            self._wake.clear()
            # Replies are taken first: then all updates that precede `Stopped` go before it.
            others = [self._others.popleft() for _ in range(len(self._others))]
            stats, now = None, time.monotonic()
            if now - sent_at >= _STATS_S:
                sent_at, before, sent = now, sent, engine.stats()
                stats = None if sent == before else sent
            with self._sending:
                self._connection.finish()
                self._send_updates(stats, self._connection.send)
                if self._cache is not None:
                    everything, events = self._cache.take_events()
                    if everything or events:
                        self._connection.send(CacheChanges(everything, events))
                for message in others:
                    self._connection.send(message)
            if any(isinstance(message, Stopped) for message in others):
                return

    def _send_updates(self, stats: EngineStats | None, send: Callable[[Updates], None]) -> None:
        """Send all updates that wait, and the engine's state unless it is None. One thread at a time."""
        updates = [self._updates.popleft() for _ in range(len(self._updates))]
        if updates or stats is not None:
            send(Updates.of(updates, stats))


class _Dispatcher:
    """Carries out the server's messages."""

    def __init__(self, engine: ThreadedEngine, outbox: _Outbox) -> None:
        self._engine = engine
        self._outbox = outbox
        self._compilers = ThreadPoolExecutor(_COMPILING, thread_name_prefix="draftline-compile")
        self._lock = threading.Lock()
        self._compiling: set[str] = set()
        self._cancelled: set[str] = set()  # of the requests that are compiling

    def handle(self, message: ToEngine) -> None:
        """Carry out one message. Only `Close` blocks."""
        match message:
            case Submit() if message.request.constraint is not None:
                self._compiling.add(message.request.request_id)
                self._compilers.submit(self._compile_and_submit, message.request)
            case Submit():
                self._submit(message.request)
            case Cancel():
                with self._lock:
                    self._cancelled |= self._compiling & {message.request_id}
                self._engine.cancel(message.request_id)
            case Command():
                self._run(message).add_done_callback(partial(self._reply, message.serial))
            case FollowCache():
                self._outbox.follow(self._engine.journal)
            case Close():
                self._engine.close()

    def _compile_and_submit(self, request: EngineRequest) -> None:
        """Submit a request, which blocks while its constraint compiles. If it was cancelled meanwhile, end it."""
        request_id = request.request_id
        self._submit(request)
        with self._lock:
            cancelled = request_id in self._cancelled
            self._cancelled.discard(request_id)
            self._compiling.discard(request_id)
        if cancelled:
            self._engine.cancel(request_id)

    def _submit(self, request: EngineRequest) -> None:
        try:
            self._engine.submit_prepared(request, self._outbox.put)
        except Exception as error:  # noqa: BLE001  the error is the request's
            self._outbox.put([(request.request_id, Failed(error))])
        self._outbox.release()  # its error, or that of a request whose place in the queue it took

    def _run(self, command: Command) -> Future[int] | Future[None]:
        match command.name:
            case "flush_prefix_cache":
                return self._engine.flush_prefix_cache()
            case "start_profile":
                return self._engine.start_profile()
            case "stop_profile":
                assert command.path is not None
                return self._engine.stop_profile(command.path)

    def _reply(self, serial: int, done: Future[int] | Future[None]) -> None:
        error = done.exception()
        if error is None:
            self._outbox.send(Reply(serial, done.result()))
        else:
            self._outbox.send(
                Reply(serial, error=portable(error if isinstance(error, Exception) else Exception(error)))
            )


def _read(connection: MessageSocket, inbox: SimpleQueue[ToEngine]) -> None:
    """Receive the server's messages. If the server process has ended, end this one at once."""
    while True:
        try:
            inbox.put(connection.receive())
        except (EOFError, OSError):
            os._exit(0)


def _workers(config: EngineConfig) -> KernelCompileWorkers | None:
    """Processes that compile kernels, if kernels surely must be compiled: they import torch while this process does."""
    wanted = runs_on_gpu(config.device) and config.uses_graphs and nothing_compiled()
    return KernelCompileWorkers.start_if_useful() if wanted else None


def main(descriptor: int, substitutes: Substitutes | None = None) -> None:
    """Load the model, and serve until the server closes the engine or ends.

    Args:
        descriptor: of the connection to the server.
        substitutes: parts that a benchmark measures the engine without.
    """
    # A signal to the whole process group is the server's to handle: it lets requests finish first.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    connection = MessageSocket(socket.socket(fileno=descriptor))
    inbox: SimpleQueue[ToEngine] = SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), name="draftline-read", daemon=True).start()
    start = inbox.get()
    assert isinstance(start, Start)
    start_process(start.log_level, start.log_format)
    outbox = _Outbox(connection)
    workers = _workers(start.config)
    try:
        # These import torch.
        from draftline.engine.threaded_engine import start_engine
        from draftline.models.loader import open_checkpoint
        from draftline.structured.compiler import ConstraintCompiler

        load = inbox.get()
        assert isinstance(load, LoadModel)
        opened = Opened(open_checkpoint(start.config.model, load_format=start.config.load_format).config)
        connection.send(opened)
        engine = start_engine(start.config, workers, substitutes, ConstraintCompiler.prepare)
    except Exception as error:  # noqa: BLE001  the server reports it
        connection.send(Stopped(portable(error)))
        return
    finally:
        if workers is not None:
            workers.stop()
    keep_heap()
    connection.send(Started(engine.info, engine.stats()))
    engine.when_launched(outbox.release)
    engine.stopped.add_done_callback(lambda stopped: outbox.send(Stopped(stopped.result())))
    dispatcher = _Dispatcher(engine, outbox)
    sender = threading.Thread(target=outbox.run, args=(engine,), name="draftline-send", daemon=True)
    sender.start()
    while sender.is_alive():
        dispatcher.handle(inbox.get())
        if engine.stopped.done():
            sender.join()


if __name__ == "__main__":
    main(int(sys.argv[1]))
