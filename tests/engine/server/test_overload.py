"""Overload: each limit refuses a request with RESOURCE_EXHAUSTED and a retry delay, and leaves the others alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from byte_compilers import byte_compiler
from fake_engine import ByteTokenizer, FakeEngine, fake_info
from grpc_client import AsyncStub, SessionClient, connect, retry_delay_s, status_of, text_request, texts
from patience import PATIENCE_S
from stepped_engine import SteppedEngine

from draftline.engine.client.channel import OWN_CONNECTION
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.backlog import Backlog
from draftline.engine.request.request import RequestBuilder
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


async def until_queued(engine: SteppedEngine, count: int) -> None:
    """Let the engine step until ``count`` requests wait in it."""
    while engine.stats().queued_requests != count:
        await engine.steps(1)


async def test_waiting_requests_are_bounded_and_running_ones_do_not_count(
    server: Server, channel: grpc.aio.Channel
) -> None:
    engine = SteppedEngine(num_slots=1, max_waiting=2)
    await server.serve(engine)
    client = SessionClient(InferenceServiceStub(channel))
    await client.submit("runs", text_request("abc", max_tokens=60, ignore_eos=True))
    await engine.steps(1)
    for name in ("waits", "waits too", "refused"):
        await client.submit(name, text_request(name, max_tokens=2, ignore_eos=True))
    error = await first_error(client)
    assert error.request_id == "refused"
    assert error.error.code == RESOURCE_EXHAUSTED
    assert "2 requests wait, which is the limit (max_waiting)" in error.error.message
    assert 0.1 <= retry_delay_s(error.error) <= 30
    await until_queued(engine, 2)
    engine.release()
    assert set(texts(await client.outcomes())) == {"runs", "waits", "waits too"}
    await asyncio.to_thread(engine.close)


async def test_waiting_tokens_are_bounded_but_one_prompt_always_fits(server: Server, channel: grpc.aio.Channel) -> None:
    engine = SteppedEngine(num_slots=1, max_waiting_tokens=30)
    await server.serve(engine)
    client = SessionClient(InferenceServiceStub(channel))
    await client.submit("long, alone", text_request("a" * 200, max_tokens=2, ignore_eos=True))
    await engine.steps(1)
    await client.submit("first", text_request("a" * 20, max_tokens=2, ignore_eos=True))
    await client.submit("too much", text_request("a" * 11, max_tokens=2, ignore_eos=True))
    error = await first_error(client)
    assert error.request_id == "too much"
    assert error.error.code == RESOURCE_EXHAUSTED
    assert "20 tokens" in error.error.message
    await client.submit("just fits", text_request("a" * 10, max_tokens=2, ignore_eos=True))
    engine.release()
    assert set(texts(await client.outcomes())) == {"long, alone", "first", "just fits"}
    await asyncio.to_thread(engine.close)


async def first_error(client: SessionClient):  # type: ignore[no-untyped-def]
    while not (response := await client.next()).HasField("error"):
        pass
    return response


async def test_sessions_are_bounded(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "draftline.requests")
    server = Server(ServerConfig(port=0, max_sessions=2))
    await server.start()
    await server.serve(engine)
    async with connect(server.address) as channel:
        stub = InferenceServiceStub(channel)
        first, second = SessionClient(stub), SessionClient(stub)
        for client in (first, second):
            await client.submit("a", text_request("a", max_tokens=1))
            await client.next()
        with pytest.raises(grpc.RpcError) as caught:
            await SessionClient(stub).call.read()
        status = status_of(caught.value)
        assert status.code == RESOURCE_EXHAUSTED
        assert retry_delay_s(status) > 0
        [refusal] = [record.fields for record in caplog.records if record.message == "refused"]  # type: ignore[attr-defined]
        assert (refusal["call"], refusal["code"]) == ("Session", "RESOURCE_EXHAUSTED")
        assert refusal["reason"] == status.message
        assert [r async for r in first.rest()][-1].HasField("finished")
        third = SessionClient(stub)
        await third.submit("b", text_request("b"))
        assert texts(await third.outcomes()) == {"b": "bbbb"}
        second.call.cancel()
    await server.abort()


async def test_calls_beyond_the_streams_of_a_connection_wait_at_the_client(
    make_engine: Callable[..., FakeEngine],
) -> None:
    engine = make_engine()
    server = Server(ServerConfig(port=0, max_streams=2))
    await server.start()
    await server.serve(engine)
    engine.hold()
    async with connect(server.address) as channel:
        await channel.channel_ready()  # from then on the client knows the limit; the server may refuse earlier calls
        stub: AsyncStub = InferenceServiceStub(channel)

        async def text(call: grpc.aio.UnaryStreamCall[Any, Any]) -> str:
            try:
                return "".join([response.delta.text async for response in call])
            except grpc.aio.AioRpcError as error:
                # The server may still count a stream whose end the client has seen, and refuse the next, which never ran.
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return await text(stub.Generate(text_request("abc", max_tokens=3)))

        calls = [stub.Generate(text_request("abc", max_tokens=3)) for _ in range(5)]
        await asyncio.to_thread(engine.wait_running, 2)
        engine.release()
        assert [await text(call) for call in calls] == ["abc"] * 5
    await server.abort()


async def test_a_burst_of_calls_loses_none(serve: Callable[..., Any]) -> None:
    """They come while the event loop is busy, and wait in gRPC, which by default ends some of more than 1000."""
    server = await serve(max_streams=4096)
    with grpc.insecure_channel(server.address, [OWN_CONNECTION]) as channel:
        stub = InferenceServiceStub(channel)
        calls = [stub.GetModel.future(pb.GetModelRequest()) for _ in range(4000)]  # without a pause for the event loop
        answers = await asyncio.to_thread(lambda: [call.result(PATIENCE_S) for call in calls])
    assert {answer.model for answer in answers} == {fake_info().model}


async def test_a_message_that_is_too_large_is_refused(engine: FakeEngine) -> None:
    server = Server(ServerConfig(port=0, max_request_mib=1))
    await server.start()
    await server.serve(engine)
    async with connect(server.address) as channel:
        stub: AsyncStub = InferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            await stub.Generate(text_request("x" * (1 << 20))).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "".join([r.delta.text async for r in stub.Generate(text_request("abc", max_tokens=3))]) == "abc"
    await server.abort()


def request(name: str, tokens: int):  # type: ignore[no-untyped-def]
    builder = RequestBuilder(fake_info(), ByteTokenizer(), 5.0, byte_compiler())  # type: ignore[arg-type]
    return builder.build(name, GenerateRequest("x" * tokens), lambda pairs: None, 0.0)


def test_the_backlog_counts_each_request_until_it_first_runs_or_ends() -> None:
    backlog = Backlog()
    for name, tokens in (("a", 5), ("b", 7)):
        backlog.add(request(name, tokens))
    assert (len(backlog), backlog.tokens) == (2, 12)
    backlog.start("a", 1.0)
    backlog.start("a", 2.0)  # a second time, after a preemption
    assert (len(backlog), backlog.tokens) == (1, 7)
    backlog.drop("b")
    backlog.drop("a")
    assert (len(backlog), backlog.tokens) == (0, 0)


def test_the_retry_delay_grows_with_the_queue_and_shrinks_with_its_speed() -> None:
    def advice(waiting: int, interval: float) -> float:
        backlog = Backlog()
        for number in range(waiting + 50):
            backlog.add(request(str(number), 1))
        for number in range(50):
            backlog.start(str(number), number * interval)
        return backlog.retry_after()

    assert advice(40, 1.0) == pytest.approx(10.0, rel=0.01)
    assert advice(40, 0.1) == pytest.approx(1.0, rel=0.01)
    assert advice(4, 0.001) == 0.1
    assert advice(1000, 1.0) == 30.0


async def test_a_full_queue_makes_room_for_a_lighter_caller(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens: [{name: heavy, token: the-token-of-heavy}, {name: light, token: the-token-of-light}]")
    server = Server(ServerConfig(port=0, tokens=str(tokens)))
    await server.start()
    engine = SteppedEngine(num_slots=1, max_waiting=3)
    await server.serve(engine)
    channel = connect(server.address)
    heavy, light = (
        SessionClient(InferenceServiceStub(channel), metadata=(("authorization", f"Bearer the-token-of-{name}"),))
        for name in ("heavy", "light")
    )
    await heavy.submit("runs", text_request("abc", max_tokens=60, ignore_eos=True))
    await engine.steps(1)
    for name in ("one", "two", "three"):
        await heavy.submit(name, text_request(name, max_tokens=9, ignore_eos=True))
    await until_queued(engine, 3)
    await light.submit("single", text_request("x", max_tokens=2, ignore_eos=True))
    engine.release()
    error = await first_error(heavy)
    assert error.request_id == "three"
    assert error.error.code == RESOURCE_EXHAUSTED
    assert "took this one's place" in error.error.message
    assert retry_delay_s(error.error) >= 0.1
    assert set(texts(await light.outcomes())) == {"single"}
    assert set(texts(await heavy.outcomes())) == {"runs", "one", "two"}
    await asyncio.to_thread(engine.close)
    await channel.close()
    await server.abort()
