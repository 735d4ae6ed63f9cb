"""All the ways to cancel a request, over a real socket to a real engine. Its blocks are free one step later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from fake_engine import MAX_MODEL_LEN, FakeEngine
from google.protobuf.duration_pb2 import Duration
from grpc_client import AsyncStub, SessionClient, connect, text_request, texts, violations
from patience import DEADLINE_S, PATIENCE_S
from stepped_engine import SteppedEngine

from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.fixture
async def stub(server: Server, channel: grpc.aio.Channel, stepped: SteppedEngine) -> AsyncIterator[AsyncStub]:
    await server.serve(stepped)
    yield InferenceServiceStub(channel)
    await server.abort()


WAYS = ["cancel in the session", "cancelled call", "deadline of the call", "dropped connection"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_cancelled_request_is_freed_one_step_later(
    way: str, server: Server, stub: AsyncStub, stepped: SteppedEngine
) -> None:
    # A separate connection, which can be dropped.
    channel = connect(server.address)
    timeout = DEADLINE_S if way == "deadline of the call" else None
    client = SessionClient(InferenceServiceStub(channel), timeout)
    names = ("a", "b")
    for name in names:
        await client.submit(name, text_request(name * 20, max_tokens=100, ignore_eos=True))
    await stepped.steps(2)
    assert stepped.taken_blocks > 0
    match way:
        case "cancel in the session":
            for name in names:
                await client.cancel(name)
        case "cancelled call":
            client.call.cancel()
        case "dropped connection":
            await channel.close()
    await stepped.cancels(2)
    await stepped.steps(2)  # the step in flight when the cancels came, and one more
    assert stepped.taken_blocks == 0
    assert (stepped.stats().running, stepped.stats().waiting) == (0, 0)
    await channel.close()


async def test_a_request_that_times_out_ends_alone_with_deadline_exceeded(
    stub: AsyncStub, stepped: SteppedEngine
) -> None:
    client = SessionClient(stub)
    hurried = text_request("a" * 20, max_tokens=100, ignore_eos=True)
    hurried.timeout.FromSeconds(60)
    await client.submit("hurried", hurried)
    await client.submit("patient", text_request("b" * 20, max_tokens=20, ignore_eos=True))
    while stepped.stats().running < 2:
        await stepped.steps(1)
    stepped.let_pass(61)
    await stepped.steps(2)  # the step in flight, and one more
    assert stepped.stats().running == 1
    stepped.release()
    errors: dict[str, pb.SessionResponse] = {}
    ended = []
    async for response in client.rest():
        if response.HasField("error"):
            errors[response.request_id] = response
        elif response.HasField("finished"):
            ended.append(response.request_id)
    assert ended == ["patient"]
    assert errors["hurried"].error.code == DEADLINE_EXCEEDED.value[0]


async def test_a_request_that_times_out_in_the_queue_never_runs(server: Server, channel: grpc.aio.Channel) -> None:
    engine = SteppedEngine(num_slots=1)
    await server.serve(engine)
    client = SessionClient(InferenceServiceStub(channel))
    await client.submit("running", text_request("a" * 20, max_tokens=400, ignore_eos=True))
    await engine.steps(1)
    queued = text_request("b" * 20, max_tokens=3)
    queued.timeout.FromSeconds(60)
    await client.submit("queued", queued)
    while engine.stats().waiting == 0:
        await engine.steps(1)
    engine.let_pass(61)
    await client.cancel("running")  # its slot would be free now
    await engine.cancels(1)
    engine.release()
    events = {(r.request_id, r.WhichOneof("event")) async for r in client.rest()}
    assert {event for name, event in events if name == "queued"} == {"error"}
    assert engine.stats().prefix_query_tokens == 20, "the queued request was admitted"
    await asyncio.to_thread(engine.close)


@pytest.mark.parametrize("timeout", [Duration(), Duration(seconds=-1)])
async def test_a_timeout_must_be_positive(timeout: Duration, stub: AsyncStub) -> None:
    client = SessionClient(stub)
    request = text_request("a")
    request.timeout.CopyFrom(timeout)
    await client.submit("a", request)
    assert list(violations(await client.error("a"))) == ["timeout"]


async def read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


@pytest.mark.parametrize("call", ["Session", "Generate"])
@pytest.mark.parametrize("leaves", [False, True])
async def test_a_stalled_reader_is_cancelled_and_others_are_not(
    call: str, leaves: bool, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(ServerConfig(port=0, stall_timeout=0.3))
    await server.start()
    engine.hold()
    await server.serve(engine)
    small_window = [("grpc.http2.lookahead_bytes", 65536), ("grpc.http2.bdp_probe", 0)]
    # Two messages that exceed the buffers of the connection, then one for each step.
    request = text_request("x" * (MAX_MODEL_LEN - 200), max_tokens=100, prompt_logprobs=20, logprobs=20)
    async with (
        connect(server.address, *small_window) as slow,
        connect(server.address) as quick,
    ):
        stalled = SessionClient(InferenceServiceStub(slow))
        if call == "Session":
            await stalled.submit("stalled", request)
        else:
            stalled.call = InferenceServiceStub(slow).Generate(request)
        reader = SessionClient(InferenceServiceStub(quick))
        await reader.submit("read", text_request("abc", max_tokens=3))
        await asyncio.to_thread(engine.wait_running, 2)
        await asyncio.to_thread(engine.step)
        while not engine.cancelled:
            await asyncio.sleep(0.01)
        engine.release()
        assert texts(await reader.outcomes()) == {"read": "abc"}
        await asyncio.to_thread(engine.wait_idle)
        await server.wait_idle()
        if leaves:
            stalled.call.cancel()
        else:
            with pytest.raises(grpc.aio.AioRpcError, match="nothing was read for") as caught:
                await asyncio.wait_for(read_all(stalled.call), PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.ABORTED
    await server.abort()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_cancelling_twice_or_an_unknown_id_has_no_effect(stub: AsyncStub, stepped: SteppedEngine) -> None:
    client = SessionClient(stub)
    await client.submit("a", text_request("a" * 20, max_tokens=50, ignore_eos=True))
    for name in ("a", "a", "b"):
        await client.cancel(name)
    await stepped.cancels(1)
    assert not stepped.cancel("unknown")
    stepped.release()
    [outcome] = (await client.outcomes()).values()
    assert outcome.reason == "FINISH_REASON_CANCELLED"
    assert not stepped.cancel("s0.0"), "it has ended"
