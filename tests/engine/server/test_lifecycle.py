"""The life cycle of the server: loading, health, draining, reflection, and ports that cannot be used."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio
import httpx2
import pytest
from fake_engine import FakeEngine
from grpc_client import AsyncStub, SessionClient, connect, status_of, text_request, texts
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection_pb2
from http2_client import ACK, GOAWAY, PING, PREFACE, SETTINGS, frame
from patience import PATIENCE_S

from draftline.engine.errors import CannotListenError
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.grpc.listener import ADMIN_SERVICE, SERVICE
from draftline.engine.server.grpc.reflection import V1
from draftline.engine.server.server import Server
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING


def health(channel: grpc.aio.Channel, service: str) -> grpc.aio.UnaryUnaryCall[bytes, HealthCheckResponse]:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, HealthCheckResponse] = channel.unary_unary(
        "/grpc.health.v1.Health/Check", response_deserializer=HealthCheckResponse.FromString
    )
    return method(HealthCheckRequest(service=service).SerializeToString())


async def check(channel: grpc.aio.Channel, service: str) -> int:
    return (await health(channel, service)).status


async def reason(channel: grpc.aio.Channel) -> object:
    return dict(await health(channel, "").trailing_metadata())["draftline-status"]  # type: ignore[call-overload]


class Watching:
    """A Watch of a service's health."""

    def __init__(self, channel: grpc.aio.Channel, service: str) -> None:
        method: grpc.aio.UnaryStreamMultiCallable[bytes, HealthCheckResponse] = channel.unary_stream(
            "/grpc.health.v1.Health/Watch", response_deserializer=HealthCheckResponse.FromString
        )
        self._call = method(HealthCheckRequest(service=service).SerializeToString())

    async def next(self) -> int:
        response = await self._call.read()
        assert isinstance(response, HealthCheckResponse)
        return response.status


async def test_while_the_model_loads_everything_is_unavailable(
    server: Server, channel: grpc.aio.Channel, engine: FakeEngine
) -> None:
    stub = InferenceServiceStub(channel)
    assert await check(channel, "") == NOT_SERVING
    calls: list[Awaitable[object]] = [
        stub.GetModel(pb.GetModelRequest()),
        stub.Tokenize(pb.TokenizeRequest(text="a")),
        stub.Generate(text_request("a")).read(),
        SessionClient(stub).call.read(),
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            await call
        status = status_of(caught.value)
        assert (status.code, status.message) == (grpc.StatusCode.UNAVAILABLE.value[0], "the model is still loading")
    await server.serve(engine)
    assert (await stub.GetModel(pb.GetModelRequest())).model == "fake"


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_health_can_be_watched_from_loading_to_draining(
    service: str, server: Server, channel: grpc.aio.Channel, engine: FakeEngine
) -> None:
    watching = Watching(channel, service)
    assert await watching.next() == NOT_SERVING
    await server.serve(engine)
    assert await watching.next() == SERVING
    assert await check(channel, service) == SERVING
    engine.hold()
    client = SessionClient(InferenceServiceStub(channel))
    await client.submit("a", text_request("a"))
    await asyncio.to_thread(engine.wait_running, 1)
    draining = asyncio.create_task(server.drain())
    assert await watching.next() == NOT_SERVING
    engine.release()
    assert await draining


async def test_a_server_whose_engine_died_is_not_serving(
    server: Server, channel: grpc.aio.Channel, engine: FakeEngine
) -> None:
    watching = Watching(channel, "")
    assert await watching.next() == NOT_SERVING
    await server.serve(engine)
    assert await watching.next() == SERVING
    stub = InferenceServiceStub(channel)
    for prompt in ("DIE", "after"):
        with pytest.raises(grpc.RpcError) as caught:
            await stub.Generate(text_request(prompt)).read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        if prompt == "DIE":
            assert await watching.next() == NOT_SERVING
    assert await check(channel, SERVICE) == NOT_SERVING


async def test_health_says_why_a_server_is_not_serving(
    server: Server, channel: grpc.aio.Channel, engine: FakeEngine
) -> None:
    assert await reason(channel) == "loading"
    await server.serve(engine)
    assert await reason(channel) == "ready"
    engine.hold()
    client = SessionClient(InferenceServiceStub(channel))
    await client.submit("a", text_request("a"))
    await asyncio.to_thread(engine.wait_running, 1)
    draining = asyncio.create_task(server.drain())
    await asyncio.sleep(0)
    assert await reason(channel) == "draining"
    engine.release()
    assert await draining


async def test_a_server_whose_engine_hangs_is_not_serving_until_it_goes_on(
    serve: Callable[..., Awaitable[Server]], engine: FakeEngine
) -> None:
    server = await serve(step_timeout=1)
    async with connect(server.address) as channel:
        watching = Watching(channel, "")
        assert await watching.next() == SERVING
        engine.hold()
        client = SessionClient(InferenceServiceStub(channel))
        await client.submit("a", text_request("a"))
        assert await watching.next() == NOT_SERVING
        assert await reason(channel) == "hanging"
        engine.release()
        assert await watching.next() == SERVING


async def test_a_server_of_a_dead_engine_says_so(server: Server, channel: grpc.aio.Channel, engine: FakeEngine) -> None:
    await server.serve(engine)
    with pytest.raises(grpc.RpcError):
        await InferenceServiceStub(channel).Generate(text_request("DIE")).read()
    async with asyncio.timeout(PATIENCE_S):
        while await check(channel, "") != NOT_SERVING:  # the call learns of it first
            await asyncio.sleep(0.01)
    assert await reason(channel) == "stopped"


async def test_an_unknown_service_has_no_health(server: Server, channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        await check(channel, "unknown")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_draining_lets_running_requests_finish_and_refuses_new_ones(
    server: Server, stub: AsyncStub, engine: FakeEngine
) -> None:
    engine.hold()
    client = SessionClient(stub)
    await client.submit("old", text_request("old", max_tokens=6))
    call = stub.Generate(text_request("too"))
    await asyncio.to_thread(engine.wait_running, 2)
    draining = asyncio.create_task(server.drain())
    await asyncio.sleep(0)
    await client.submit("new", text_request("new"))
    error = await client.error("new")
    assert error.code == grpc.StatusCode.UNAVAILABLE.value[0]
    with pytest.raises(grpc.RpcError) as caught:
        await stub.Generate(text_request("new")).read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    engine.release()
    assert texts(await client.outcomes()) == {"old": "oldold"}
    assert "".join([response.delta.text async for response in call]) == "toot"
    assert await draining


async def test_draining_gives_up_after_its_timeout_and_cancels_the_rest(engine: FakeEngine) -> None:
    engine.hold()
    server = Server(ServerConfig(port=0, drain_timeout=0.1))
    await server.start()
    await server.serve(engine)
    async with connect(server.address) as channel:
        client = SessionClient(InferenceServiceStub(channel))
        await client.submit("a", text_request("a"))
        await asyncio.to_thread(engine.wait_running, 1)
        assert not await server.drain()
        error = await client.error("a")
        assert error.code == grpc.StatusCode.UNAVAILABLE.value[0]
        assert error.message == "the server shut down before it had finished the request"
        assert await client.call.code() is grpc.StatusCode.UNAVAILABLE
    while not engine.cancelled:
        await asyncio.sleep(0.001)


async def test_a_stream_outlives_what_the_engine_says_of_requests_that_were_cut_off(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.pace(0.001)
    server = Server(ServerConfig(port=0, drain_timeout=0.1))
    await server.start()
    await server.serve(engine)
    async with connect(server.address) as channel:
        client = SessionClient(InferenceServiceStub(channel))
        for name in ("a", "b"):
            await client.submit(name, text_request(name, max_tokens=4000))
        await asyncio.to_thread(engine.wait_running, 2)
        assert not await server.drain()
        errors: dict[str, int] = {}
        while len(errors) < 2:
            response = await client.next()
            if response.WhichOneof("event") == "error":
                errors[response.request_id] = response.error.code
        assert set(errors.values()) == {grpc.StatusCode.UNAVAILABLE.value[0]}
        assert await client.call.code() is grpc.StatusCode.UNAVAILABLE
    assert "a request failed" not in caplog.text


async def test_draining_does_not_wait_for_idle_streams(server: Server, stub: AsyncStub) -> None:
    client = SessionClient(stub)
    await client.submit("a", text_request("a"))
    while (await client.next()).WhichOneof("event") != "finished":
        pass
    assert await server.drain()
    assert await client.call.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_port_in_use_is_one_clear_error(server: Server) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(CannotListenError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*in use"):
        await Server(ServerConfig(port=port)).start()


async def test_a_foreign_host_is_one_clear_error() -> None:
    with pytest.raises(CannotListenError, match=r"cannot listen on 192\.0\.2\.1:0: "):
        await Server(ServerConfig(host="192.0.2.1", port=0, insecure=True)).start()


@pytest.mark.parametrize("turns", [0, 1, 3, *(pytest.param(turns, marks=pytest.mark.slow) for turns in (2, 4, 5))])
async def test_a_server_that_is_cancelled_while_it_starts_is_gone(
    turns: int, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    gc.collect()  # what earlier tests have left may complain
    caplog.clear()
    recwarn.clear()
    server = Server(ServerConfig(port=0, http_port=0))
    starting = asyncio.create_task(server.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    address = server.address
    del server, starting
    gc.collect()
    assert not recwarn.list
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    if not address.endswith(":0"):
        host, _, port = address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))


@pytest.fixture
def ipv6() -> None:
    """Skip the test if this machine has no IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")


@pytest.mark.usefixtures("ipv6")
async def test_a_client_is_one_caller_over_grpc_and_http(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "draftline.requests")
    server = Server(ServerConfig(host="::", port=0, http_port=0, insecure=True))
    await server.start()
    await server.serve(engine)
    for host in ("[::1]", "127.0.0.1"):
        async with connect(f"{host}:{server.address.rpartition(':')[2]}") as channel:
            async for _ in InferenceServiceStub(channel).Generate(text_request("a")):
                pass
        async with httpx2.AsyncClient(base_url=f"http://{host}:{str(server.http_address).rpartition(':')[2]}") as http:
            assert (await http.post("/v1/completions", json={"prompt": "a"})).status_code == 200
    await server.abort()
    peers = [record.fields["peer"].rpartition(":")[0] for record in caplog.records]  # type: ignore[attr-defined]
    assert peers == ["ipv6:[::1]", "ipv6:[::1]", "ipv4:127.0.0.1", "ipv4:127.0.0.1"]


@pytest.mark.usefixtures("ipv6")
async def test_an_ipv6_address_is_written_in_brackets(engine: FakeEngine) -> None:
    server = Server(ServerConfig(host="::1", port=0))
    await server.start()
    assert server.address.startswith("[::1]:")
    await server.serve(engine)
    async with connect(server.address) as channel:
        assert await check(channel, "") == SERVING
    await server.abort()


async def reflect(
    channel: grpc.aio.Channel, package: str, *requests: reflection_pb2.ServerReflectionRequest
) -> list[reflection_pb2.ServerReflectionResponse]:
    async def asked() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        for request in requests:
            yield request

    method = channel.stream_stream(
        f"/grpc.reflection.{package}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return [response async for response in method(asked())]


@pytest.mark.parametrize("package", ["v1", "v1alpha"])
async def test_reflection_lists_and_describes_everything(
    package: str, server: Server, channel: grpc.aio.Channel
) -> None:
    listing, service, status, itself, method, *unknown = await reflect(
        channel,
        package,
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        reflection_pb2.ServerReflectionRequest(file_by_filename="google/rpc/error_details.proto"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=V1),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"{SERVICE}.Generate"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"{SERVICE}.Nothing"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="Nothing"),
    )
    assert {entry.name for entry in listing.list_services_response.service} == {
        SERVICE,
        ADMIN_SERVICE,
        "grpc.channelz.v1.Channelz",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    for response, content in ((service, b"GenerateRequest"), (status, b"BadRequest"), (itself, b"grpc.reflection.v1")):
        file, *_imports = response.file_descriptor_response.file_descriptor_proto
        assert content in file
    assert method.file_descriptor_response == service.file_descriptor_response
    assert [response.error_response.error_code for response in unknown] == [grpc.StatusCode.NOT_FOUND.value[0]] * 2
    assert b"v1alpha" not in itself.file_descriptor_response.file_descriptor_proto[0]


async def answers_to_pings(server: Server, count: int) -> int:
    """Send pings in turn over a raw connection. Returns how many are answered before the server closes it."""
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(PREFACE + frame(SETTINGS))
    answered = 0
    try:
        while answered < count:
            writer.write(frame(PING, bytes(8)))
            while True:
                header = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(header[:3], "big"))
                if header[3] == GOAWAY:
                    return answered
                if header[3:5] == bytes([PING, ACK]):
                    break
            answered += 1
            await asyncio.sleep(0.02)
    finally:
        writer.close()
    return answered


@pytest.mark.parametrize(("min_ping_interval", "all_answered"), [(0.01, True), (300, False)])
async def test_clients_may_ping_as_often_as_configured(min_ping_interval: float, all_answered: bool) -> None:
    """By default gRPC allows one ping in five minutes, and closes quiet connections that send more."""
    server = Server(ServerConfig(port=0, min_ping_interval=min_ping_interval))
    await server.start()
    assert (await answers_to_pings(server, 20) == 20) is all_answered
    await server.abort()
