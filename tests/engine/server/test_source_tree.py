"""A server that runs from a source tree: the package has no installed metadata, and nothing asks for it."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import Distribution, PackageNotFoundError

import pytest
from fake_engine import FakeEngine
from grpc_client import connect

import draftline
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

smg = pytest.importorskip("smg_grpc_proto.generated.vllm_engine_pb2", reason="needs the extra draftline[gateway]")
pytest.importorskip("opentelemetry.sdk", reason="needs the extra draftline[tracing]")

from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub


@pytest.fixture
def no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the metadata of draftline, and of no other package."""
    from_name = Distribution.from_name

    def found(name: str) -> Distribution:
        if name == "draftline":
            raise PackageNotFoundError(name)
        return from_name(name)

    monkeypatch.setattr(Distribution, "from_name", found)
    with pytest.raises(PackageNotFoundError):
        importlib.metadata.version("draftline")


@pytest.mark.usefixtures("no_metadata")
async def test_every_face_gives_its_version_without_installed_metadata(engine: FakeEngine) -> None:
    server = Server(ServerConfig(port=0, gateway=True, otlp_endpoint="http://127.0.0.1:1"))
    await server.start()
    await server.serve(engine)
    async with connect(server.address) as channel:
        model = await InferenceServiceStub(channel).GetModel(pb.GetModelRequest())
        loads = await VllmEngineStub(channel).GetLoads(smg.GetLoadsRequest())
    await server.abort()
    assert model.version == loads.version == draftline.__version__
