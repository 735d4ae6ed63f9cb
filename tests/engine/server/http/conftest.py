"""A server with the HTTP face around a fake engine, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest_asyncio
from fake_engine import FakeEngine

from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server

Serve = Callable[..., Awaitable[Server]]


@pytest_asyncio.fixture(loop_scope="module")
async def serve(engine: FakeEngine) -> AsyncIterator[Serve]:
    """Start servers of the fake engine with options."""
    servers: list[Server] = []

    async def start(**options: Any) -> Server:
        server = Server(ServerConfig(**{"port": 0, "http_port": 0, "drain_timeout": 10} | options))
        servers.append(server)
        await server.start()
        await server.serve(engine)
        return server

    yield start
    for server in servers:
        await server.abort()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_engine() -> AsyncIterator[FakeEngine]:
    """The fake engine of the tests of one file."""
    engine = FakeEngine()
    yield engine
    engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(shared_engine: FakeEngine) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a server of the shared engine."""
    server = Server(ServerConfig(port=0, http_port=0))
    await server.start()
    await server.serve(shared_engine)
    async with httpx2.AsyncClient(timeout=60, base_url=f"http://{server.http_address}") as client:
        yield client
    await server.abort()
