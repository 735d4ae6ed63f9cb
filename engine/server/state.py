"""``Front``: what all services of one server share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from draftline.engine.errors import DraftlineError, EngineStoppedError
from draftline.engine.protocol import EngineClient
from draftline.engine.server.access import Access, Caller
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.telemetry.reports import Observer
from draftline.engine.streaming.mailbox import Hub


@dataclass(frozen=True, slots=True)
class Front:
    """See the module.

    Attributes:
        gate: lets requests in to the engine.
        access: knows callers.
        hub: brings the event loop's mailboxes their updates.
        config: the server's.
        observers: told of every request that is over.
    """

    gate: Gate
    access: Access
    hub: Hub
    config: ServerConfig
    observers: Sequence[Observer]
    _serials: Iterator[int] = field(default_factory=count)

    def enter(self, caller: Caller) -> EngineClient:
        """The engine, for one request of a caller, which must `leave` when it is over.

        Raises:
            EngineStoppedError: the engine is not ready, or the server is draining.
            QueueFullError: that would be more than the caller's token allows.
        """
        engine = self.gate.enter()
        try:
            caller.enter()
        except DraftlineError:
            self.gate.leave()
            raise
        return engine

    def leave(self, caller: Caller) -> None:
        """End what one `enter` began."""
        caller.leave()
        self.gate.leave()

    def next_name(self) -> str:
        """A name for a call that no other call of the server has."""
        return f"s{next(self._serials)}"


class Gate:
    """Shut until an engine is ready, open while it serves, shut for good once the server drains. One event loop's."""

    def __init__(self) -> None:
        """A gate that waits for its engine."""
        self._engine: EngineClient | None = None
        self._draining = False
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def open(self, engine: EngineClient) -> None:
        """Let requests in to ``engine``."""
        self._engine = engine

    def close(self) -> None:
        """Let no more requests in; those inside go on."""
        self._draining = True

    @property
    def is_open(self) -> bool:
        """Whether requests may enter, to an engine that runs."""
        return self._engine is not None and not self._draining and not self._engine.stopped.done()

    @property
    def engine(self) -> EngineClient:
        """The engine, also while draining.

        Raises:
            EngineStoppedError: it is not ready yet.
        """
        if self._engine is None:
            raise EngineStoppedError("the model is still loading")
        return self._engine

    def enter(self) -> EngineClient:
        """The engine, for one request, which must `leave` when it is over.

        Raises:
            EngineStoppedError: the engine is not ready, or the server is draining.
        """
        engine = self.engine
        if self._draining:
            raise EngineStoppedError("the server is shutting down and takes no new requests")
        self._inside += 1
        self._empty.clear()
        return engine

    def leave(self) -> None:
        """End what one `enter` began."""
        self._inside -= 1
        if not self._inside:
            self._empty.set()

    async def wait_empty(self) -> None:
        """Wait until no request is inside."""
        await self._empty.wait()
