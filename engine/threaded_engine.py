"""``ThreadedEngine``: the core on a thread of its own, so that no event loop waits for the model."""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from typing_extensions import override

from draftline.engine.build import NO_SUBSTITUTES, Substitutes, build_core
from draftline.engine.config import EngineConfig
from draftline.engine.core import Core
from draftline.engine.errors import DeviceLostError, DuplicateRequestError, EngineStoppedError, QueueFullError
from draftline.engine.loading import engine_fork_problem
from draftline.engine.outputs import Failed
from draftline.engine.protocol import EngineClient, GenerateRequest, Sink, Submitted
from draftline.engine.request.backlog import displaced_by
from draftline.engine.request.engine_request import EngineRequest
from draftline.engine.request.request import Request, RequestBuilder
from draftline.engine.stats import EngineStats
from draftline.kernels.compile_workers import KernelCompileWorkers
from draftline.structured.compiler import ConstraintCompiler

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_FINDS_OUT_S = 1.0
"""Seconds for the step thread to find out that a part of the engine in another process is lost."""


class ThreadedEngine(EngineClient):
    """An engine in this process. Any thread may submit and cancel; the step thread alone uses the core."""

    def __init__(
        self, core: Core, *, max_waiting: int, max_waiting_tokens: int, ageing_s: float, seed: int | None = None
    ) -> None:
        """Start the step thread.

        Args:
            core: runs the requests. Only the step thread may call it from now on.
            max_waiting: limit of requests that wait for their first step.
            max_waiting_tokens: limit of the tokens in their prompts, unless a single request waits.
            ageing_s: the head start in the queue, in seconds, for each unit of priority.
            seed: of the seeds of requests that have none; None for random ones.
        """
        self.info = core.info
        self.tokenizer = core.tokenizer
        self.compiler = core.compiler
        self.journal = core.journal
        self.stopped: Future[EngineStoppedError | None] = Future()
        self._core = core
        self._builder = RequestBuilder(core.info, core.tokenizer, ageing_s, core.compiler, seed)
        self._max_waiting = max_waiting
        self._max_waiting_tokens = max_waiting_tokens
        self._wake = threading.Condition()
        self._inbox: dict[str, Request] = {}
        self._displaced: set[str] = set()
        self._cancels: deque[str] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._lost = self._ended = False
        self._thread = threading.Thread(target=self._loop, name="draftline-step", daemon=True)
        self._thread.start()
        # Python ends a daemon thread wherever it is. Within torch that aborts the process.
        atexit.register(self.close)
        core.when_lost(self._wake_lost)

    @override
    def submit(self, request_id: str, request: GenerateRequest, sink: Sink) -> Submitted:
        self.check_running()
        submitted_at = self._core.now() - request.constraint_compile_s
        prepared = self._builder.prepare(request_id, request)
        self._enqueue(prepared.begin(sink, submitted_at))
        return Submitted(prepared.request.prompt_token_ids, prepared.reader)

    def check_running(self) -> None:
        """Raise for new requests unless the engine takes them.

        Raises:
            EngineStoppedError: the engine is stopping, or runs in this process's parent.
        """
        if problem := engine_fork_problem():
            raise EngineStoppedError(problem)
        if self._stopping:
            raise EngineStoppedError("the engine is stopping and takes no new requests")

    def submit_prepared(self, request: EngineRequest, sink: Sink) -> None:
        """Queue a request that another process has validated. Blocks while its constraint compiles here.

        Raises:
            InvalidRequestError: the constraint does not compile here.
            DuplicateRequestError: its id is running already.
            QueueFullError: too many requests wait.
            EngineStoppedError: the engine is stopping.
        """
        self._enqueue(self._builder.attach(request, sink, self._core.now()))

    @override
    def cancel(self, request_id: str) -> bool:
        with self._wake:
            if not self._is_running(request_id):
                return False
            self._cancels.append(request_id)
            self._wake.notify()
            return True

    @override
    def stats(self) -> EngineStats:
        """The engine's state now. Numbers may be a step apart."""
        return self._core.stats()

    @override
    def replicas_with_work(self) -> Sequence[bool]:
        return (bool(self._inbox or self._core.has_work),)

    @override
    def flush_prefix_cache(self) -> Future[int]:
        return self._between_steps(self._core.flush_prefix_cache)

    @override
    def start_profile(self) -> Future[None]:
        return self._between_steps(self._core.profiler.start)

    @override
    def stop_profile(self, path: Path) -> Future[None]:
        return self._between_steps(lambda: self._core.profiler.stop(path))

    def when_launched(self, call: Callable[[], object]) -> None:
        """Call ``call`` in each step once it is launched, as `Core.when_launched` says.

        Set it before the first request.
        """
        self._core.when_launched(call)

    def close(self) -> None:
        """Stop after the step in progress; unfinished requests fail with `EngineStoppedError`. Idempotent.

        In a fork of the engine's process it does nothing.
        """
        if engine_fork_problem():
            return
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()
        self._core.close()

    def __enter__(self) -> Self:
        """The running engine."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def _enqueue(self, request: Request) -> None:
        with self._wake:
            self.check_running()
            if self._is_running(request.request_id):
                raise DuplicateRequestError(f"a request with id {request.request_id!r} is running")
            self._make_room(request)
            self._inbox[request.request_id] = request
            self._wake.notify()

    def _make_room(self, request: Request) -> None:
        """Displace waiting requests of heavier callers, or of a lower priority, until there is room for a new one.

        Raises:
            QueueFullError: there is none for it.
        """
        backlog, inbox = self._core.backlog, self._inbox.values()
        if self._queue_problem(request, len(backlog) + len(inbox), backlog.tokens + _prompt_tokens(inbox)) is None:
            return  # there is, though those that are displaced may still count
        waiting = [other for other in backlog.waiting() if other.request_id not in self._displaced]
        waiting += inbox
        displaced: list[Request] = []
        while (problem := self._queue_problem(request, len(waiting), _prompt_tokens(waiting))) is not None:
            victim = displaced_by(request, waiting)
            if victim is None:
                raise QueueFullError(problem, backlog.retry_after())
            waiting.remove(victim)
            displaced.append(victim)
        for victim in displaced:
            self._displace(
                victim, QueueFullError("another caller's request took this one's place", backlog.retry_after())
            )

    def _queue_problem(self, request: Request, count: int, tokens: int) -> str | None:
        """Why a request has no room beside ``count`` that wait, whose prompts have ``tokens``; None if it has."""
        if count >= self._max_waiting:
            return f"{count} requests wait, which is the limit (max_waiting)"
        if count and tokens + len(request.prompt_token_ids) > self._max_waiting_tokens:
            return (
                f"the prompts that wait have {tokens} tokens; with this one they would exceed the limit of "
                f"{self._max_waiting_tokens} (max_waiting_tokens)"
            )
        return None

    def _displace(self, victim: Request, error: QueueFullError) -> None:
        if self._inbox.pop(victim.request_id, None) is not None:
            victim.sink([(victim.request_id, Failed(error))])
            return
        self._displaced.add(victim.request_id)

        def displace() -> None:
            self._core.displace(victim.request_id, error)
            self._displaced.discard(victim.request_id)

        self._commands.append(displace)

    def _is_running(self, request_id: str) -> bool:
        return self._core.is_live(request_id) or request_id in self._inbox

    def _loop(self) -> None:
        try:
            self._run_steps()
        except BaseException as error:  # a panic of native code in Rust is no Exception
            # The core survives a fault of one step's work. So the device is lost, or the engine's own state is in
            # doubt. Another server, or this one after a restart, can serve the requests.
            logger.critical("the engine stopped", exc_info=True)
            self._end_after(error)
            return
        self._end(EngineStoppedError("the engine stopped before the request was finished"), None)

    def _run_steps(self) -> None:
        """Step until the engine must stop, and tell what was read, however the steps end."""
        try:
            while self._wait_for_work():
                self._run_commands()
                self._core.check_alive()
                self._core.step()
        finally:
            self._core.tell()

    def _end_after(self, error: BaseException) -> None:
        reason = EngineStoppedError(f"the engine stopped after a fault: {error!r}")
        self._end(EngineStoppedError("the engine stopped after a fault"), reason)

    def _wake_lost(self) -> None:
        """Let the step thread find out, while it waits for work, that the engine cannot go on.

        If it waits for a device, which waits for what is lost, it never finds out. Then this thread ends the engine.
        """
        with self._wake:
            self._lost = True
            self._wake.notify()
        self._thread.join(_FINDS_OUT_S)
        try:
            self._core.check_alive()
        except DeviceLostError as error:
            self._end_after(error)

    def _wait_for_work(self) -> bool:
        """Wait until there is work, and pass new requests and cancels to the core. False if the engine must stop."""
        while not self._is_wanted() and self._core.capture_next():
            pass  # what steps would have to do otherwise; a request waits for one graph at most
        with self._wake:
            self._wake.wait_for(self._is_wanted)
            for request in self._take_inbox():
                self._core.add(request)
            while self._cancels:
                self._core.cancel(self._cancels.popleft())
            return not self._stopping

    def _is_wanted(self) -> bool:
        """Whether the step thread has something to do."""
        return bool(
            self._stopping or self._lost or self._inbox or self._cancels or self._commands or self._core.has_work
        )

    def _between_steps(self, work: Callable[[], _T]) -> Future[_T]:
        """Run ``work`` on the step thread, between two steps."""
        done: Future[_T] = Future()

        def command() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    result = work()
                except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
                    done.set_exception(error)
                else:
                    done.set_result(result)

        with self._wake:
            if self._stopping:
                done.set_exception(EngineStoppedError("the engine has stopped"))
            else:
                self._commands.append(command)
                self._wake.notify()
        return done

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _take_inbox(self) -> Iterable[Request]:
        inbox, self._inbox = self._inbox, {}
        return inbox.values()

    def _end(self, error: Exception, reason: EngineStoppedError | None) -> None:
        """Refuse new requests, and fail all requests in flight with ``error``. Only the first call counts.

        ``reason`` is what `stopped` says.
        """
        with self._wake:
            if self._ended:
                return
            self._ended = self._stopping = True
            atexit.unregister(self.close)
            for request in self._take_inbox():
                request.sink([(request.request_id, Failed(error))])
        self._core.fail_all(error)
        self._run_commands()
        self.stopped.set_result(reason)


def _prompt_tokens(requests: Iterable[Request]) -> int:
    return sum([len(request.prompt_token_ids) for request in requests])


def start_engine(
    config: EngineConfig,
    workers: KernelCompileWorkers | None = None,
    substitutes: Substitutes | None = None,
    prepare: Callable[[ConstraintCompiler], object] = lambda compiler: None,
) -> ThreadedEngine:
    """Load the model and start the step thread. Blocks until it is loaded.

    Args:
        config: the engine's options.
        workers: see `build_core`.
        substitutes: see `build_core`.
        prepare: see `build_core`.

    Raises:
        ModelLoadError: the model cannot be loaded, or cannot be served with these options.
    """
    return ThreadedEngine(
        build_core(config, workers, substitutes or NO_SUBSTITUTES, prepare),
        max_waiting=config.max_waiting,
        max_waiting_tokens=config.max_waiting_tokens,
        ageing_s=config.ageing_s,
        seed=config.default_seed,
    )
