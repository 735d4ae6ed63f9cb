"""A server on a thread of its own, for clients that block."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from patience import PATIENCE_S

from draftline.engine.protocol import EngineClient
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server


@contextlib.contextmanager
def served_on_a_thread(engine: EngineClient, **options: Any) -> Iterator[Server]:
    """A server of an engine, over gRPC and HTTP. Both end with it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Server:
        server = Server(ServerConfig(port=0, http_port=0, **options))
        await server.start()
        await server.serve(engine)
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE_S)
    yield server
    asyncio.run_coroutine_threadsafe(server.abort(), loop).result(PATIENCE_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    engine.close()
