"""A fake engine and a gRPC server around it on a loopback socket. A tiny model behind the four faces."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator

import grpc.aio
import pytest

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # read when gRPC starts; otherwise it logs every lost connection

from byte_tokenizer import write_byte_model
from fake_engine import FakeEngine
from four_faces import FourFaces, four_faces
from grpc_client import AsyncStub, connect

from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server
from draftline.v1.engine_pb2_grpc import InferenceServiceStub


@pytest.fixture
def make_engine() -> Iterator[Callable[..., FakeEngine]]:
    """Make fake engines, which are closed after the test."""
    engines: list[FakeEngine] = []

    def make(**options: float) -> FakeEngine:
        engines.append(FakeEngine(**options))  # type: ignore[arg-type]
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(make_engine: Callable[..., FakeEngine]) -> FakeEngine:
    """A fake engine that runs as fast as it can."""
    return make_engine()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server that listens but has no engine yet; it has ten seconds to drain."""
    server = Server(ServerConfig(port=0, drain_timeout=10))
    await server.start()
    yield server
    await server.abort()


@pytest.fixture
async def channel(server: Server) -> AsyncIterator[grpc.aio.Channel]:
    """A connection to the server."""
    async with connect(server.address) as channel:
        yield channel


@pytest.fixture
async def stub(server: Server, channel: grpc.aio.Channel, engine: FakeEngine) -> AsyncStub:
    """A client of the server, which serves the fake engine."""
    await server.serve(engine)
    return InferenceServiceStub(channel)


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FourFaces]:
    """A tiny model behind the four faces."""
    with four_faces(write_byte_model(tmp_path_factory.mktemp("model"))) as faces:
        yield faces
