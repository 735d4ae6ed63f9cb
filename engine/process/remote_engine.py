"""``RemoteEngine``: an `EngineClient` whose engine has a process of its own (`engine_process.py`)."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeVar

from draftline.engine.cache_journal import CacheJournal
from draftline.engine.config import EngineConfig
from draftline.engine.errors import DuplicateRequestError, EngineStoppedError
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
)
from draftline.engine.protocol import GenerateRequest, Sink
from draftline.engine.request.request import RequestBuilder
from draftline.engine.stats import EngineStats
from draftline.models.tokenization.tokenizer import load_tokenizer
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.vocabulary import ByteVocabulary

_MessageT = TypeVar("_MessageT", Opened, Started)

_CLOSE_S = 30.0
"""Seconds that the process gets to end."""


@dataclass(slots=True)
class _Live:
    sink: Sink
    outputs: int


class RemoteEngine:
    """See the module. What a caller asks for is checked, tokenized and compiled here; the process gets token ids.

    That a queue is full the process finds out: such a request fails a moment after it was submitted. What the prefix cache
    holds is not told (`journal` stays empty).

    Attributes:
        process: the engine's.
        connection: to it; where it breaks, the process ends.
    """

    def __init__(
        self, config: EngineConfig, *, log_level: str = "warning", log_format: Literal["text", "json"] = "text"
    ) -> None:
        """Start the process, and wait until it serves.

        Raises:
            ModelLoadError: the model cannot be loaded, or served with these options.
            EngineStoppedError: the process ended before it could say why.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            # Without the current directory on the path: it may have modules that hide others (-P).
            command = (sys.executable, "-P", "-m", "draftline.engine.process.worker", str(theirs.fileno()))
            self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
        self.connection = Connection(ours.detach())
        self._sending = threading.Lock()
        self._send(Start(config, log_level, log_format))
        opened = self._receive(Opened)
        # While the process loads the model.
        self.tokenizer = load_tokenizer(config.tokenizer or config.model, opened.config)
        started = self._receive(Started)
        self.info, self._stats = started.info, started.stats
        eos_ids = frozenset(self.info.eos_token_ids)
        self.compiler: ConstraintCompiler | None = ConstraintCompiler(
            ByteVocabulary.of(self.tokenizer, self.info.config.vocab_size, eos_ids)
        )
        self.journal = CacheJournal()
        self.stopped: Future[EngineStoppedError | None] = Future()
        self._builder = RequestBuilder(self.info, self.tokenizer, config.ageing_s, self.compiler)
        self._lock = threading.Lock()
        self._live: dict[str, _Live] = {}
        self._closing = False
        self._orders: dict[int, Future[Any]] = {}
        self._serials = count()
        self._reader = threading.Thread(target=self._read, name="draftline-engine", daemon=True)
        self._reader.start()

    def submit(self, request_id: str, request: GenerateRequest, sink: Sink) -> Sequence[int]:
        """See `EngineClient.submit`."""
        ids = self._builder.build(request_id, request, sink, time.monotonic()).prompt_token_ids
        with self._lock:
            if self._closing or self.stopped.done():
                raise EngineStoppedError("the engine is stopping and takes no new requests")
            if request_id in self._live:
                raise DuplicateRequestError(f"a request with id {request_id!r} is running")
            self._live[request_id] = _Live(sink, request.sampling.n)
        self._send(Submit(request_id, replace(request, prompt=ids)))
        return ids

    def cancel(self, request_id: str) -> bool:
        """See `EngineClient.cancel`."""
        if request_id not in self._live:
            return False
        self._send(Cancel(request_id))
        return True

    def stats(self) -> EngineStats:
        """The engine's state a moment ago."""
        return self._stats

    def flush_prefix_cache(self) -> Future[int]:
        """See `EngineClient.flush_prefix_cache`."""
        return self._order("flush_prefix_cache")

    def start_profile(self) -> Future[None]:
        """See `EngineClient.start_profile`."""
        return self._order("start_profile")

    def stop_profile(self, path: Path) -> Future[None]:
        """See `EngineClient.stop_profile`."""
        return self._order("stop_profile", path)

    def close(self) -> None:
        """Stop after the step in progress; unfinished requests fail with `EngineStoppedError`. Idempotent."""
        self._closing = True
        self._send(Close())
        self._reader.join(_CLOSE_S)
        try:
            self.process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.connection.close()
        if self.compiler is not None:
            self.compiler.close()

    def _receive(self, expected: type[_MessageT]) -> _MessageT:
        """The next message, before the reader runs."""
        try:
            message = pickle.loads(self.connection.recv_bytes())
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
        """Where the process has gone, the reader finds out, and all requests fail."""
        data = pickle.dumps(message, protocol=5)
        with self._sending, suppress(OSError):
            self.connection.send_bytes(data)

    def _order(
        self, what: Literal["flush_prefix_cache", "start_profile", "stop_profile"], path: Path | None = None
    ) -> Future[Any]:
        serial, done = next(self._serials), Future[Any]()
        with self._lock:
            if self._closing or self.stopped.done():
                done.set_exception(EngineStoppedError("the engine has stopped"))
                return done
            self._orders[serial] = done
        self._send(Order(serial, what, path))
        return done

    def _read(self) -> None:
        end: Exception | None = None
        while True:
            try:
                message: FromEngine = pickle.loads(self.connection.recv_bytes())
            except (EOFError, OSError):
                end = (
                    None
                    if self._closing
                    else EngineStoppedError(f"the engine's process ended with {self.process.wait()}")
                )
                break
            match message:
                case News():
                    self._deliver(message)
                case Answer():
                    self._answer(message)
                case Stopped():
                    end = message.error
                    break
        self._end(end)

    def _deliver(self, news: News) -> None:
        if news.stats is not None:
            self._stats = news.stats
        by_sink: dict[Sink, list[tuple[str, Update]]] = defaultdict(list)
        for name, update in news.updates():
            live = self._live.get(name)
            if live is None:
                continue
            by_sink[live.sink].append((name, update))
            live.outputs = 0 if update.ends_request else live.outputs - update.ends_output
            if not live.outputs:
                with self._lock:
                    del self._live[name]
        for sink, updates in by_sink.items():
            sink(updates)

    def _answer(self, answer: Answer) -> None:
        done = self._orders.pop(answer.serial)
        if done.set_running_or_notify_cancel():
            if answer.error is None:
                done.set_result(answer.result)
            else:
                done.set_exception(answer.error)

    def _end(self, error: Exception | None) -> None:
        """Fail whatever has not ended, and say that the engine has."""
        why = error if isinstance(error, EngineStoppedError) or error is None else EngineStoppedError(str(error))
        with self._lock:
            self._closing = True
            live, self._live = self._live, {}
            orders, self._orders = self._orders, {}
        failure = why or EngineStoppedError("the engine stopped before the request was finished")
        for name, one in live.items():
            one.sink([(name, Failed(failure))])
        for done in orders.values():
            if done.set_running_or_notify_cancel():
                done.set_exception(failure)
        self.stopped.set_result(why)
