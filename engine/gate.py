"""``Gate``: which engine serves now, whether new requests may enter, and when the last has left."""

from __future__ import annotations

import asyncio

from draftline.engine.client import EngineClient
from draftline.engine.errors import EngineStoppedError


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
