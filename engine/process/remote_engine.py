"""``RemoteEngine``: an `EngineClient` whose engine runs in a process of its own, or several that share its requests."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from draftline.engine.config import EngineConfig
from draftline.engine.errors import DuplicateRequestError, EngineStoppedError
from draftline.engine.process.engine_process import EngineProcess
from draftline.engine.process.messages import CommandName
from draftline.engine.process.placement import Placement
from draftline.engine.protocol import EngineClient, GenerateRequest, Sink, Submitted
from draftline.engine.request.language import configured_compiler, configured_tokenizer
from draftline.engine.request.request import RequestBuilder
from draftline.engine.stats import EngineStats, total
from draftline.models.errors import ModelLoadError

logger = logging.getLogger(__name__)


class RemoteEngine(EngineClient):
    """Engines in other processes, each with the whole model. All of them give a request the same outputs.

    Requests are validated, tokenized and compiled here, and the process that has the least to do gets the result. Its
    queue may be full, so `QueueFullError` comes as an update soon after the submission. A process that ends fails its
    requests; the others go on. The engine has ended when all of them have.

    Attributes:
        replicas: the processes.
    """

    def __init__(self, config: EngineConfig, replicas: Sequence[EngineProcess]) -> None:
        """Let the processes load the model, and wait until all of them serve.

        Args:
            config: the options that they were started with.
            replicas: the processes (`start_replicas`), which end with this engine, or if it cannot be made.

        Raises:
            ModelLoadError: the model cannot be loaded, or served with these options; or the replicas differ.
            EngineStoppedError: a process ended before it could say why.
        """
        self.replicas = list(replicas)
        with ExitStack() as undo:
            for replica in self.replicas:
                undo.callback(replica.abandon)
            for replica in self.replicas:
                replica.load_model()
            shape, *_ = [replica.opened() for replica in self.replicas]
            # The processes load the model, while this one prepares what requests need here.
            self.tokenizer = configured_tokenizer(config, shape)
            self.compiler = configured_compiler(config, self.tokenizer, shape)
            undo.callback(self.compiler.close)
            self.compiler.prepare()
            for replica in self.replicas:
                replica.start()
            self._check_alike()
            undo.pop_all()
        infos = [replica.info for replica in self.replicas]
        self.info = replace(
            infos[0],
            max_model_len=min(info.max_model_len for info in infos),
            device_uuids=tuple(dict.fromkeys(uuid for info in infos for uuid in info.device_uuids)),
        )
        # A gateway places requests by the contents of one cache, so it has a server for each replica.
        self.journal = self.replicas[0].journal
        self.stopped: Future[EngineStoppedError | None] = Future()
        self._builder = RequestBuilder(self.info, self.tokenizer, config.ageing_s, self.compiler, config.default_seed)
        self._lock = threading.Lock()
        self._placement = Placement(len(self.replicas), min(info.cache_blocks for info in infos), self.info.block_size)
        self._running = len(self.replicas)
        for index, replica in enumerate(self.replicas):
            replica.stopped.add_done_callback(self._when_stopped(index))

    @override
    def submit(self, request_id: str, request: GenerateRequest, sink: Sink) -> Submitted:
        prepared = self._builder.prepare(request_id, request)
        engine_request = prepared.request
        with self._lock:
            if any(replica.has(request_id) for replica in self.replicas):
                raise DuplicateRequestError(f"a request with id {request_id!r} is running")
            loads = [None if replica.has_ended else replica.load for replica in self.replicas]
            if not any(loads):
                raise EngineStoppedError("the engine is stopping and takes no new requests")
            index, uncached = self._placement.place(engine_request.prompt_token_ids, loads)
            self.replicas[index].submit(engine_request, sink, uncached)
        return Submitted(engine_request.prompt_token_ids, prepared.reader)

    @override
    def cancel(self, request_id: str) -> bool:
        return any(replica.cancel(request_id) for replica in self.replicas)

    @override
    def stats(self) -> EngineStats:
        """The engine's state as last reported, a fraction of a second ago."""
        return total(self.stats_by_replica())

    @override
    def stats_by_replica(self) -> Sequence[EngineStats]:
        return [replica.stats() for replica in self.replicas]

    @override
    def replicas_running(self) -> Sequence[bool]:
        return [not replica.has_ended for replica in self.replicas]

    @override
    def replicas_with_work(self) -> Sequence[bool]:
        return [replica.has_work for replica in self.replicas]

    @override
    def flush_prefix_cache(self) -> Future[int]:
        return _joined(self._run("flush_prefix_cache"), sum)

    @override
    def start_profile(self) -> Future[None]:
        return _joined(self._run("start_profile"), lambda _: None)

    @override
    def stop_profile(self, path: Path) -> Future[None]:
        """Stop profiling, and write the first replica's trace to ``path``; the others' names have their index."""
        return _joined(self._run("stop_profile", path), lambda _: None)

    def close(self) -> None:
        """Stop after the steps in progress; unfinished requests fail with `EngineStoppedError`. Idempotent."""
        for replica in self.replicas:
            replica.begin_close()
        for replica in self.replicas:
            replica.close()
        self.compiler.close()

    def _run(self, command: CommandName, path: Path | None = None) -> list[Future[Any]]:
        """Run a command in all processes, of which those that have ended fail it unless there is another."""
        running = [(index, replica) for index, replica in enumerate(self.replicas) if not replica.has_ended]
        (_, first), *others = running or [(0, self.replicas[0])]
        return [
            first.run(command, path),
            *(replica.run(command, None if path is None else _with_index(path, index)) for index, replica in others),
        ]

    def _check_alike(self) -> None:
        first = self.replicas[0].info
        for replica in self.replicas[1:]:
            if replica.info.system_fingerprint != first.system_fingerprint:
                raise ModelLoadError(
                    f"data_parallel_size: replicas on {first.device} and {replica.info.device} would answer differently "
                    f"(system fingerprints {first.system_fingerprint} and {replica.info.system_fingerprint})"
                )

    def _when_stopped(self, index: int) -> Callable[[Future[EngineStoppedError | None]], None]:
        def note(stopped: Future[EngineStoppedError | None]) -> None:
            with self._lock:
                self._running -= 1
                left = self._running
            if not left:
                self.stopped.set_result(stopped.result())
            elif stopped.result() is not None:
                logger.error("replica %d has ended, %d go on: %s", index, left, stopped.result())

        return note


def _with_index(path: Path, index: int) -> Path:
    """The path of another file beside this one: ``-1`` precedes the suffixes of its name."""
    name, dot, suffixes = path.name.partition(".")
    return path.with_name(f"{name}-{index}{dot}{suffixes}")


def _joined(parts: Iterable[Future[Any]], join: Callable[[list[Any]], Any]) -> Future[Any]:
    """A future of the joined results of others; it fails as the first of them that does."""
    parts = list(parts)
    done: Future[Any] = Future()
    lock = threading.Lock()
    left = len(parts)

    def note(_: Future[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = not left
        if not last or not done.set_running_or_notify_cancel():
            return
        error = next((part.exception() for part in parts if part.exception() is not None), None)
        if error is None:
            done.set_result(join([part.result() for part in parts]))
        else:
            done.set_exception(error)

    for part in parts:
        part.add_done_callback(note)
    return done
