"""The engine's own process: ``python -m draftline.engine.process.worker FD``, which `RemoteEngine` starts.

Sending tokens to hundreds of clients takes Python as long as a step takes the device, and Python runs one thread of a process
at a time. So on a GPU the server and the engine are two processes: a step never waits for a message.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING

from draftline.engine.config import EngineConfig
from draftline.engine.outputs import Failed, Update
from draftline.engine.process.messages import (
    Answer,
    Cancel,
    Close,
    FromEngine,
    News,
    Opened,
    Order,
    Start,
    Started,
    Stopped,
    Submit,
    ToEngine,
    portable,
)
from draftline.engine.process.startup import has_gpu, start_process
from draftline.engine.stats import EngineStats
from draftline.kernels.compile_workers import KernelCompileWorkers, nothing_compiled

if TYPE_CHECKING:  # it loads torch, which takes seconds
    from draftline.engine.threaded_engine import ThreadedEngine

_STATS_S = 0.05
"""How often the server is told the engine's state."""

_COMPILING = 8
"""Requests whose constraints are waited for at once."""


class _Outbox:
    """Sends what the step thread leaves here, all that has come meanwhile in one message."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._updates: deque[tuple[str, Update]] = deque()
        self._others: deque[FromEngine] = deque()
        self._wake = threading.Event()

    def put(self, updates: Sequence[tuple[str, Update]]) -> None:
        """The step thread's sink."""
        self._updates.extend(updates)
        self._wake.set()

    def tell(self, message: FromEngine) -> None:
        """Something else than updates."""
        self._others.append(message)
        self._wake.set()

    def run(self, engine: ThreadedEngine) -> None:
        """Send until the engine has stopped."""
        told: EngineStats | None = None
        told_at = 0.0
        while True:
            self._wake.wait(_STATS_S)
            self._wake.clear()
            # Before the updates, of which none comes after the end.
            others = [self._others.popleft() for _ in range(len(self._others))]
            updates = [self._updates.popleft() for _ in range(len(self._updates))]
            stats, now = engine.stats(), time.monotonic()
            news = stats is not told and now - told_at >= _STATS_S
            if updates or news:
                self._send(News.of(updates, stats if news else None))
            if news:
                told, told_at = stats, now
            for message in others:
                self._send(message)
                if isinstance(message, Stopped):
                    return

    def _send(self, message: FromEngine) -> None:
        self._connection.send_bytes(pickle.dumps(message, protocol=5))


class _Desk:
    """Does what the server says."""

    def __init__(self, engine: ThreadedEngine, outbox: _Outbox) -> None:
        self._engine = engine
        self._outbox = outbox
        self._compilers = ThreadPoolExecutor(_COMPILING, thread_name_prefix="draftline-compile")
        self._lock = threading.Lock()
        self._compiling: set[str] = set()
        self._given_up: set[str] = set()  # of those that are compiling

    def handle(self, message: ToEngine) -> None:
        """One message; returns at once, but for `Close`."""
        match message:
            case Submit() if message.request.constraint is not None:
                self._compiling.add(message.request_id)
                self._compilers.submit(self._compile_and_submit, message)
            case Submit():
                self._submit(message)
            case Cancel():
                with self._lock:
                    self._given_up |= self._compiling & {message.request_id}
                self._engine.cancel(message.request_id)
            case Order():
                self._order(message).add_done_callback(partial(self._answer, message.serial))
            case Close():
                self._engine.close()

    def _compile_and_submit(self, message: Submit) -> None:
        """Submitting waits for the constraint; a request that was cancelled meanwhile ends at once."""
        name = message.request_id
        self._submit(message)
        with self._lock:
            given_up = name in self._given_up
            self._given_up.discard(name)
            self._compiling.discard(name)
        if given_up:
            self._engine.cancel(name)

    def _submit(self, message: Submit) -> None:
        try:
            self._engine.submit(message.request_id, message.request, self._outbox.put)
        except Exception as error:  # noqa: BLE001  it is the request's
            self._outbox.put([(message.request_id, Failed(error))])

    def _order(self, order: Order) -> Future[int] | Future[None]:
        match order.what:
            case "flush_prefix_cache":
                return self._engine.flush_prefix_cache()
            case "start_profile":
                return self._engine.start_profile()
            case "stop_profile":
                assert order.path is not None
                return self._engine.stop_profile(order.path)

    def _answer(self, serial: int, done: Future[int] | Future[None]) -> None:
        error = done.exception()
        if error is None:
            self._outbox.tell(Answer(serial, done.result()))
        else:
            self._outbox.tell(
                Answer(serial, error=portable(error if isinstance(error, Exception) else Exception(error)))
            )


def _read(connection: Connection, inbox: SimpleQueue[ToEngine]) -> None:
    """Take messages from the server. Without it there is nothing left to do, whatever the engine is at."""
    while True:
        try:
            inbox.put(pickle.loads(connection.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)


def _workers(config: EngineConfig) -> KernelCompileWorkers | None:
    """What compiles kernels, if it surely will: it loads torch at the same time as this process."""
    wanted = has_gpu() and config.device != "cpu" and not config.enforce_eager and nothing_compiled()
    return KernelCompileWorkers.start_if_useful() if wanted else None


def main(descriptor: int) -> None:
    """Load, serve, and end when told, or when the server's process has ended."""
    # Signals to the whole group are the server's to answer: it lets requests finish first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(descriptor)
    inbox: SimpleQueue[ToEngine] = SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), name="draftline-read", daemon=True).start()
    start = inbox.get()
    assert isinstance(start, Start)
    start_process(start.log_level, start.log_format)
    outbox = _Outbox(connection)
    workers = _workers(start.config)
    try:
        # These load torch, too.
        from draftline.engine.async_engine import start_engine
        from draftline.models.loader import open_checkpoint

        opened = Opened(open_checkpoint(start.config.model, load_format=start.config.load_format).config)
        connection.send_bytes(pickle.dumps(opened))
        engine = start_engine(start.config, workers)
    except Exception as error:  # noqa: BLE001  the server tells it
        connection.send_bytes(pickle.dumps(Stopped(portable(error))))
        return
    finally:
        if workers is not None:
            workers.stop()
    connection.send_bytes(pickle.dumps(Started(engine.info, engine.stats())))
    engine.stopped.add_done_callback(lambda stopped: outbox.tell(Stopped(stopped.result())))
    desk = _Desk(engine, outbox)
    sender = threading.Thread(target=outbox.run, args=(engine,), name="draftline-send", daemon=True)
    sender.start()
    while sender.is_alive():
        desk.handle(inbox.get())
        if engine.stopped.done():
            sender.join()


if __name__ == "__main__":
    main(int(sys.argv[1]))
