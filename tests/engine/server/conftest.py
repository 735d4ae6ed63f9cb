"""Servers with options around a fake engine. An engine that runs step by step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from fake_engine import FakeEngine
from stepped_engine import SteppedEngine

from draftline.engine.protocol import EngineClient
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server


@pytest.fixture
async def serve(engine: FakeEngine) -> AsyncIterator[Callable[..., Any]]:
    """Start servers with options, of the fake engine unless another is given; each is stopped after the test."""
    servers: list[Server] = []

    async def start(engine: EngineClient = engine, **options: Any) -> Server:
        server = Server(ServerConfig(port=0, **options))
        servers.append(server)
        await server.start()
        await server.serve(engine)
        return server

    yield start
    for server in servers:
        await server.abort()


@pytest.fixture
def stepped() -> Iterator[SteppedEngine]:
    """An engine whose steps the test lets through."""
    engine = SteppedEngine()
    yield engine
    engine.release()
    engine.close()
