"""``RemoteEngine``: an `EngineClient` whose engine runs in a process of its own (`worker.py`)."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeVar

from typing_extensions import override

from draftline.engine.cache_journal import CacheJournal, JournalReader
from draftline.engine.config import EngineConfig
from draftline.engine.errors import DuplicateRequestError, EngineStoppedError
from draftline.engine.outputs import Failed, Update
from draftline.engine.process.messages import (
    CacheChanges,
    Cancel,
    Close,
    Command,
    CommandName,
    FollowCache,
    FromEngine,
    Opened,
    Reply,
    Start,
    Started,
    Stopped,
    Submit,
    ToEngine,
    Updates,
)
from draftline.engine.protocol import EngineClient, GenerateRequest, Sink
from draftline.engine.request.request import RequestBuilder
from draftline.engine.stats import EngineStats
from draftline.models.tokenization.tokenizer import load_tokenizer
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.table_cache import cache_folder
from draftline.structured.vocabulary import ByteVocabulary

_MessageT = TypeVar("_MessageT", Opened, Started)

WORKER = "draftline.engine.process.worker"
"""The module of the engine process."""

_CLOSE_S = 30.0
"""Seconds in which the process must end when it is closed."""


@dataclass(slots=True)
class _Live:
    """A request in flight."""

    sink: Sink
    outputs: int  # that have not ended yet


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


class RemoteEngine(EngineClient):
    """An engine in another process.

    Requests are validated, tokenized and compiled here, and the engine process gets the result. Only that process knows
    whether the queue is full, so `QueueFullError` comes as an update soon after the submission. It reports the contents of
    the prefix cache from the first reader of `journal` on.

    Attributes:
        process: the engine process.
        connection: the connection to it. If the connection breaks, the process ends.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        log_level: str = "warning",
        log_format: Literal["text", "json"] = "text",
        worker: Sequence[str] = (WORKER,),
    ) -> None:
        """Start the process, and wait until it serves.

        Args:
            config: the engine's options.
            log_level: of its log, to this process's standard error.
            log_format: of its lines.
            worker: the module that it runs, and arguments for it before the connection's.

        Raises:
            ModelLoadError: the model cannot be loaded, or served with these options.
            EngineStoppedError: the process ended before it could say why.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            # Without the current directory on the path: it may have modules that hide others (-P).
            command = (sys.executable, "-P", "-m", *worker, str(theirs.fileno()))
            self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
        self.connection = Connection(ours.detach())
        self._sending = threading.Lock()
        self._send(Start(config, log_level, log_format))
        opened = self._receive(Opened)
        # The engine process loads the model meanwhile.
        self.tokenizer = load_tokenizer(
            config.tokenizer or config.model,
            opened.config,
            None if config.chat_template is None else Path(config.chat_template),
        )
        started = self._receive(Started)
        self.info, self._stats = started.info, started.stats
        eos_ids = frozenset(self.info.eos_token_ids)
        self.compiler: ConstraintCompiler | None = ConstraintCompiler(
            ByteVocabulary.of(self.tokenizer, self.info.config.vocab_size, eos_ids),
            cache_folder=cache_folder(config.constraint_cache),
        )
        self.journal: CacheJournal = _RemoteJournal(lambda: self._send(FollowCache()))
        self.stopped: Future[EngineStoppedError | None] = Future()
        self._builder = RequestBuilder(self.info, self.tokenizer, config.ageing_s, self.compiler, config.default_seed)
        self._lock = threading.Lock()
        self._live: dict[str, _Live] = {}
        self._closing = False
        self._commands: dict[int, Future[Any]] = {}
        self._serials = count()
        self._reader = threading.Thread(target=self._read, name="draftline-engine", daemon=True)
        self._reader.start()

    @override
    def submit(self, request_id: str, request: GenerateRequest, sink: Sink) -> Sequence[int]:
        prepared = self._builder.prepare(request_id, request)
        with self._lock:
            if self._closing or self.stopped.done():
                raise EngineStoppedError("the engine is stopping and takes no new requests")
            if request_id in self._live:
                raise DuplicateRequestError(f"a request with id {request_id!r} is running")
            self._live[request_id] = _Live(sink, request.sampling.n)
        self._send(Submit(replace(prepared, prompt=None)))  # the engine has no use for the text
        return prepared.prompt_token_ids

    @override
    def cancel(self, request_id: str) -> bool:
        if request_id not in self._live:
            return False
        self._send(Cancel(request_id))
        return True

    @override
    def stats(self) -> EngineStats:
        """The engine's state as last reported, a fraction of a second ago."""
        return self._stats

    @override
    def flush_prefix_cache(self) -> Future[int]:
        return self._run("flush_prefix_cache")

    @override
    def start_profile(self) -> Future[None]:
        return self._run("start_profile")

    @override
    def stop_profile(self, path: Path) -> Future[None]:
        return self._run("stop_profile", path)

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
        """Receive the next message, before the reading thread runs."""
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
        """Send a message. If the process has ended, the reading thread notices and fails all requests."""
        data = pickle.dumps(message, protocol=5)
        with self._sending, suppress(OSError):
            self.connection.send_bytes(data)

    def _run(self, command: CommandName, path: Path | None = None) -> Future[Any]:
        serial, done = next(self._serials), Future[Any]()
        with self._lock:
            if self._closing or self.stopped.done():
                done.set_exception(EngineStoppedError("the engine has stopped"))
                return done
            self._commands[serial] = done
        self._send(Command(serial, command, path))
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
                case Updates():
                    self._deliver(message)
                case CacheChanges():
                    self.journal.copy(message.everything, message.changes)
                case Reply():
                    self._resolve(message)
                case Stopped():
                    end = message.error
                    break
        self._end(end)

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
            live.outputs = 0 if update.ends_request else live.outputs - update.ends_output
            if not live.outputs:
                with self._lock:
                    del self._live[request_id]
        for sink, pairs in by_sink.items():
            sink(pairs)

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
            commands, self._commands = self._commands, {}
        failure = why or EngineStoppedError("the engine stopped before the request was finished")
        for request_id, request in live.items():
            request.sink([(request_id, Failed(failure))])
        for done in commands.values():
            if done.set_running_or_notify_cancel():
                done.set_exception(failure)
        self.stopped.set_result(why)
