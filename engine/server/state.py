"""``ServerState``: the state that all faces of one server share, and the admission of requests to its engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import count
from typing import Literal, Protocol

from draftline.engine.errors import EngineStoppedError
from draftline.engine.protocol import EngineClient
from draftline.engine.server.access import Access, Caller
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.telemetry.reports import Observer
from draftline.engine.server.tokenizer_pool import TokenizerPool
from draftline.engine.streaming.mailbox import Hub

logger = logging.getLogger(__name__)

ServerStatus = Literal["loading", "ready", "hanging", "draining", "stopped"]
"""For health probes: the model is loading, the engine serves, it has requests but finishes no step, the server shuts
down, or the engine has ended by itself."""

CUT_OFF = "the server shut down before it had finished the request"
"""The error of a request that takes longer than a drain."""


class InFlight(Protocol):
    """A request in flight; see `draftline.engine.server.in_flight`."""

    def cancel(self) -> bool:
        """End it: its outputs finish with CANCELLED. Returns whether it was running, or about to."""
        ...

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        ...


class ServerState:
    """The shared state of one server. Only its event loop may use it.

    No request is admitted until an engine serves, nor after the server has begun to drain.

    Attributes:
        config: the server's options.
        access: authenticates callers.
        hub: delivers the engine's updates to the mailboxes of the event loop.
        observers: receive a report of every request that has ended.
        sessions: how many Session streams are open.
        requests: those in flight, by request id.
    """

    def __init__(self, config: ServerConfig, access: Access, hub: Hub, observers: Sequence[Observer]) -> None:
        """The state of a server whose engine is still loading."""
        self.config = config
        self.access = access
        self.hub = hub
        self.observers = observers
        self.sessions = 0
        self.requests: dict[str, InFlight] = {}
        self._ids = count()
        self._engine: EngineClient | None = None
        self._tokenizers: TokenizerPool | None = None
        self._draining = False
        self._hangs = False
        self._status_changed = asyncio.Event()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def engine(self) -> EngineClient:
        """The engine, also while the server drains.

        Raises:
            EngineStoppedError: the model is still loading.
        """
        if self._engine is None:
            raise EngineStoppedError("the model is still loading")
        return self._engine

    @property
    def status(self) -> ServerStatus:
        """The status now. Requests are admitted if it is ``ready``, and if it is ``hanging``: an engine may go on."""
        if self._draining:
            return "draining"
        if self._engine is None:
            return "loading"
        if self._engine.stopped.done():
            return "stopped"
        return "hanging" if self._hangs else "ready"

    @property
    def status_changed(self) -> asyncio.Event:
        """Set when the status changes next. Each change has an event of its own."""
        return self._status_changed

    def report_status(self) -> None:
        """Wake all that wait for a change of the status. It waits for none of them."""
        changed, self._status_changed = self._status_changed, asyncio.Event()
        changed.set()

    def note_hang(self, *, hangs: bool) -> None:
        """Note whether the engine hangs."""
        if hangs != self._hangs:
            self._hangs = hangs
            if hangs:
                logger.critical("the engine has requests, but has finished no step for %g s", self.config.step_timeout)
            else:
                logger.warning("the engine finishes steps again")
            self.report_status()

    def serve(self, engine: EngineClient) -> None:
        """Admit requests to ``engine``."""
        self._engine = engine
        self._tokenizers = TokenizerPool(engine.tokenizer, engine.info)
        self.report_status()

    @property
    def tokenizers(self) -> TokenizerPool:
        """Tokenizes for the engine.

        Raises:
            EngineStoppedError: the model is still loading.
        """
        if self._tokenizers is None:
            raise EngineStoppedError("the model is still loading")
        return self._tokenizers

    def close(self) -> None:
        """End the processes that work for the engine."""
        if self._tokenizers is not None:
            self._tokenizers.close()

    def drain(self) -> None:
        """Admit no more requests. Requests in flight continue."""
        self._draining = True
        self.report_status()

    def cut_off(self) -> None:
        """End the requests in flight with an error, which their clients receive if they read."""
        for request in self.requests.values():
            request.fail(EngineStoppedError(CUT_OFF))

    def cancel(self, request_id: str) -> bool:
        """End a request: it finishes with CANCELLED.

        Returns:
            Whether it was in flight.
        """
        request = self.requests.get(request_id)
        return request is not None and request.cancel()

    def admit(self, caller: Caller) -> EngineClient:
        """Admit one request of ``caller``, which `release` must end.

        Returns:
            The engine for the request.

        Raises:
            EngineStoppedError: the model is still loading, or the server is draining.
            QueueFullError: the request would exceed a limit of the caller's token.
        """
        engine = self.engine
        if self._draining:
            raise EngineStoppedError("the server is shutting down and takes no new requests")
        caller.admit()
        self._in_flight += 1
        self._idle.clear()
        return engine

    def release(self, caller: Caller) -> None:
        """End one admitted request of ``caller``."""
        caller.release()
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    def next_id(self) -> str:
        """An id for a call, unique in this server."""
        return f"s{next(self._ids)}"
