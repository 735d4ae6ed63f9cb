"""A server with the HTTP face around a fake engine, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest_asyncio
from fake_engine import FakeEngine
from http_client import http_client

from draftline.engine.protocol import EngineClient
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server

Serve = Callable[..., Awaitable[Server]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ending() -> AsyncIterator[list[asyncio.Future[None]]]:
    """Servers that end while the next tests run: uvicorn takes a fifth of a second for it, most of it asleep."""
    ending: list[asyncio.Future[None]] = []
    yield ending
    await asyncio.gather(*ending)


@pytest_asyncio.fixture(loop_scope="module")
async def serve(engine: FakeEngine, ending: list[asyncio.Future[None]]) -> AsyncIterator[Serve]:
    """Start servers with options, of the fake engine unless another is given."""
    servers: list[Server] = []

    async def start(engine: EngineClient = engine, **options: Any) -> Server:
        server = Server(ServerConfig(**{"port": 0, "http_port": 0, "drain_timeout": 10} | options))
        servers.append(server)
        await server.start()
        await server.serve(engine)
        return server

    yield start
    ending.extend(asyncio.ensure_future(server.abort()) for server in servers)


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
    async with http_client(server) as client:
        yield client
    await server.abort()
