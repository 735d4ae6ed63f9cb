"""Sessions over a real socket: many requests on one stream, and all the ways in which they end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import grpc
import grpc.aio
import pytest
from fake_engine import FakeEngine
from grpc_client import AsyncStub, SessionClient, connect, retry_delay_s, text_request, texts, violations
from patience import DEADLINE_S, PATIENCE_S

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.server.limits import MAX_REQUEST_ID
from draftline.engine.server.server import Server
from draftline.engine.server.tokenizer_pool import LONG, TokenizerPool
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub


async def eventually_idle(engine: FakeEngine) -> None:
    await asyncio.to_thread(engine.wait_idle)


async def running(engine: FakeEngine, count: int) -> None:
    await asyncio.to_thread(engine.wait_running, count)


async def test_many_requests_on_one_stream(stub: AsyncStub) -> None:
    client = SessionClient(stub)
    for number in range(100):
        await client.submit(f"r{number}", text_request(f"<{number:03}>", max_tokens=10))
    outcomes = await client.outcomes()
    assert texts(outcomes) == {f"r{number}": f"<{number:03}>" * 2 for number in range(100)}
    assert {outcome.reason for outcome in outcomes.values()} == {"FINISH_REASON_LENGTH"}


async def test_requests_interleave_one_message_a_step(stub: AsyncStub, engine: FakeEngine) -> None:
    engine.hold()
    client = SessionClient(stub)
    for name in ("a", "b"):
        await client.submit(name, text_request(name, max_tokens=3))
    await running(engine, 2)
    for _ in range(2):
        await asyncio.to_thread(engine.step)
        for name in ("a", "b"):
            response = await client.next()
            assert (response.request_id, response.delta.text) == (name, name)
    engine.release()
    ends = {key: outcome.text for key, outcome in (await client.outcomes()).items()}
    assert ends == {("a", 0): "a", ("b", 0): "b"}


async def test_a_request_joins_while_others_run(stub: AsyncStub, engine: FakeEngine) -> None:
    engine.hold()
    client = SessionClient(stub)
    await client.submit("long", text_request("l", max_tokens=50))
    await running(engine, 1)
    await asyncio.to_thread(engine.step)
    assert (await client.next()).request_id == "long"
    await client.submit("short", text_request("s", max_tokens=1))
    await running(engine, 2)
    engine.release()
    outcomes = await client.outcomes()
    assert list(outcomes)[-1] == ("short", 0) or outcomes["short", 0].reason == "FINISH_REASON_LENGTH"
    assert texts(outcomes) == {"long": "l" * 49, "short": "s"}


async def test_n_outputs_end_one_by_one_and_then_the_id_is_free(stub: AsyncStub) -> None:
    client = SessionClient(stub)
    await client.submit("a", text_request("ab", n=3, seed=7))
    ends: dict[int, int] = {}
    while len(ends) < 3:
        response = await client.next()
        if response.WhichOneof("event") == "finished":
            ends[response.finished.index] = response.finished.seed
    assert ends == {0: 7, 1: 8, 2: 9}
    await client.submit("a", text_request("cd"))
    assert texts(await client.outcomes()) == {"a": "cdcd"}


async def test_the_end_reports_usage_timing_and_seed(stub: AsyncStub) -> None:
    client = SessionClient(stub)
    await client.submit("a", text_request("hello", seed=2**64 - 1))
    end = (await client.outcomes())["a", 0].finished
    assert end is not None
    assert (end.usage.prompt_tokens, end.usage.cached_tokens, end.usage.completion_tokens) == (5, 0, 4)
    assert end.seed == 2**64 - 1
    assert end.timing == pb.Timing(queued_s=0.001, prefill_s=0.002, first_token_s=0.003, total_s=0.004)
    assert not end.HasField("constraint_complete")


async def test_cancel_ends_one_request_and_leaves_the_others(stub: AsyncStub, engine: FakeEngine) -> None:
    engine.hold()
    client = SessionClient(stub)
    for name in ("a", "b"):
        await client.submit(name, text_request(name, max_tokens=5))
    await running(engine, 2)
    await client.cancel("a")
    await client.cancel("unknown")
    while len(engine.cancelled) < 1:
        await asyncio.sleep(0.001)
    engine.release()
    outcomes = await client.outcomes()
    assert {key: (o.text, o.reason) for key, o in outcomes.items()} == {
        ("a", 0): ("", "FINISH_REASON_CANCELLED"),
        ("b", 0): ("bbbbb", "FINISH_REASON_LENGTH"),
    }


async def test_the_same_id_on_two_streams_is_two_requests(stub: AsyncStub, engine: FakeEngine) -> None:
    engine.hold()
    one, two = SessionClient(stub), SessionClient(stub)
    await one.submit("a", text_request("1"))
    await two.submit("a", text_request("2"))
    await running(engine, 2)
    await one.cancel("a")
    while not engine.cancelled:
        await asyncio.sleep(0.001)
    engine.release()
    assert texts(await two.outcomes()) == {"a": "2222"}
    assert (await one.outcomes())["a", 0].reason == "FINISH_REASON_CANCELLED"


@pytest.mark.parametrize("how", ["cancel", "deadline", "disconnect"])
async def test_a_broken_stream_cancels_all_of_its_requests_and_no_others(
    how: str, server: Server, stub: AsyncStub, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.hold()
    other = SessionClient(stub)
    await other.submit("mine", text_request("mine"))
    async with connect(server.address) as channel:
        client = SessionClient(InferenceServiceStub(channel), timeout=DEADLINE_S if how == "deadline" else None)
        for number in range(3):
            await client.submit(f"r{number}", text_request("text", n=2))
        await running(engine, 4)
        await asyncio.to_thread(engine.step)
        await client.next()
        match how:
            case "cancel":
                client.call.cancel()
            case "deadline":
                assert await client.call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    while len(engine.cancelled) < 3:
        await asyncio.sleep(0.001)
    assert len(set(engine.cancelled)) == 3
    engine.release()
    assert texts(await other.outcomes()) == {"mine": "mine"}
    await eventually_idle(engine)
    assert not caplog.records


async def test_a_stream_broken_while_a_long_prompt_is_tokenized_never_submits_it(
    server: Server, stub: AsyncStub, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = SessionClient(stub)
    entered, goes_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(*arguments: object) -> list[int]:
        loop.call_soon_threadsafe(entered.set)
        goes_on.wait()
        return [1]

    submitted: list[object] = []
    monkeypatch.setattr(TokenizerPool, "_ask", slow)
    monkeypatch.setattr(engine, "submit", lambda *arguments: submitted.append(arguments))
    await client.submit("long", text_request("x" * LONG))
    await entered.wait()
    client.call.cancel()
    await server.wait_idle()  # the server has closed the stream
    goes_on.set()
    await asyncio.sleep(0.05)
    assert not submitted


async def test_a_request_whose_prompt_is_tokenized_holds_up_no_other_and_can_be_cancelled(
    stub: AsyncStub, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, goes_on = SessionClient(stub), threading.Event()

    def slow(*arguments: object) -> list[int]:
        goes_on.wait(PATIENCE_S)
        return [97]

    monkeypatch.setattr(TokenizerPool, "_ask", slow)
    await client.submit("long", text_request("x" * LONG))
    for text in ("abc", "def"):
        await client.submit("short", text_request(text, max_tokens=3))
        response = await client.next()
        while response.WhichOneof("event") == "delta":
            response = await client.next()
        assert (response.request_id, response.WhichOneof("event")) == ("short", "finished")
    for _ in range(2):
        await client.cancel("long")
    assert [(key, end.reason) for key, end in (await client.outcomes()).items()] == [
        (("long", 0), "FINISH_REASON_CANCELLED")
    ]
    assert not engine.cancelled, "the engine never had it"
    goes_on.set()


async def test_a_stream_ends_behind_the_error_of_a_request_that_waited(
    stub: AsyncStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, goes_on = SessionClient(stub), threading.Event()

    def failing(*arguments: object) -> list[int]:
        goes_on.wait(PATIENCE_S)
        raise InvalidRequestError(FieldViolation("text", "cannot be tokenized"))

    monkeypatch.setattr(TokenizerPool, "_ask", failing)
    for number in range(40):  # more than are submitted at once
        await client.submit(f"r{number}", text_request("x" * LONG))
    await client.call.done_writing()
    goes_on.set()
    errors = {response.request_id: response.error.code async for response in client.rest()}
    assert errors == {f"r{number}": grpc.StatusCode.INVALID_ARGUMENT.value[0] for number in range(40)}


async def test_half_close_lets_running_requests_finish(stub: AsyncStub, engine: FakeEngine) -> None:
    engine.hold()
    client = SessionClient(stub)
    await client.submit("a", text_request("abc", max_tokens=6))
    await client.call.done_writing()
    await running(engine, 1)
    engine.release()
    assert texts(await client.outcomes()) == {"a": "abcabc"}


async def test_an_empty_session_ends_well(stub: AsyncStub) -> None:
    assert await SessionClient(stub).outcomes() == {}


async def test_a_session_of_nothing_but_errors_ends_well(stub: AsyncStub) -> None:
    client = SessionClient(stub)
    await client.submit("a", pb.GenerateRequest())
    events = [response.WhichOneof("event") async for response in client.rest()]
    assert events == ["error"]


async def test_a_slow_reader_gets_merged_deltas_and_delays_no_other(
    make_engine: Callable[..., FakeEngine], server: Server
) -> None:
    """The engine runs to its end while the client reads nothing. Then the client gets everything in few messages."""
    engine = make_engine()
    engine.hold()
    await server.serve(engine)
    window = [("grpc.http2.lookahead_bytes", 65536), ("grpc.http2.bdp_probe", 0)]
    async with connect(server.address, *window) as channel:
        client = SessionClient(InferenceServiceStub(channel))
        requests, tokens = 16, 1500
        for number in range(requests):
            request = text_request(f"{number:02}", max_tokens=tokens, logprobs=20)
            await client.submit(f"r{number}", request)
        await running(engine, requests)
        for _ in range(tokens):
            await asyncio.to_thread(engine.step)
        await eventually_idle(engine)
        outcomes = await client.outcomes()
    assert texts(outcomes) == {f"r{number}": f"{number:02}" * (tokens // 2) for number in range(requests)}
    messages = sum(outcome.deltas for outcome in outcomes.values())
    assert messages < requests * tokens / 10


async def test_queue_full_is_resource_exhausted_with_a_delay(
    make_engine: Callable[..., FakeEngine], server: Server, channel: grpc.aio.Channel
) -> None:
    engine = make_engine(max_waiting=2)
    engine.hold()
    await server.serve(engine)
    client = SessionClient(InferenceServiceStub(channel))
    for name in ("a", "b", "c"):
        await client.submit(name, text_request(name))
    status = await client.error("c")
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert retry_delay_s(status) == 1.5
    engine.release()
    assert texts(await client.outcomes()) == {"a": "aaaa", "b": "bbbb"}


async def test_a_refused_id_can_be_used_again(stub: AsyncStub) -> None:
    client = SessionClient(stub)
    await client.submit("a", text_request("a", top_p=2.0))
    assert (await client.error("a")).code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    await client.submit("a", text_request("a"))
    assert texts(await client.outcomes()) == {"a": "aaaa"}


async def test_a_duplicate_id_is_refused_and_the_first_goes_on(stub: AsyncStub, engine: FakeEngine) -> None:
    engine.hold()
    client = SessionClient(stub)
    await client.submit("a", text_request("1"))
    await client.submit("a", text_request("2"))
    status = await client.error("a")
    assert status.code == grpc.StatusCode.ALREADY_EXISTS.value[0]
    assert "'a'" in status.message
    engine.release()
    assert texts(await client.outcomes()) == {"a": "1111"}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        pytest.param(pb.SessionRequest(submit=text_request("a")), "request_id", id="no id"),
        pytest.param(pb.SessionRequest(request_id="i" * (MAX_REQUEST_ID + 1), cancel={}), "request_id", id="long id"),
        pytest.param(pb.SessionRequest(request_id="a"), "action", id="no action"),
        pytest.param(pb.SessionRequest(request_id="a", submit=pb.GenerateRequest()), "prompt", id="no prompt"),
    ],
)
async def test_a_bad_message_is_answered_under_its_id_and_logged_and_the_stream_goes_on(
    message: pb.SessionRequest, field: str, stub: AsyncStub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "draftline.requests")
    client = SessionClient(stub)
    await client.call.write(message)
    status = await client.error(message.request_id)
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert list(violations(status)) == [field]
    await client.submit("good", text_request("g"))
    assert texts(await client.outcomes()) == {"good": "gggg"}
    [refused] = [record.fields for record in caplog.records if record.getMessage() == "refused"]  # type: ignore[attr-defined]
    assert (refused["call"], refused["code"]) == ("Session", "INVALID_ARGUMENT")
    assert refused.get("client_id", "") == message.request_id[:MAX_REQUEST_ID]
    assert refused["reason"].startswith(f"{field}: ")


async def test_a_faulty_step_fails_its_request_alone(stub: AsyncStub) -> None:
    client = SessionClient(stub)
    await client.submit("bad", text_request("FAIL"))
    await client.submit("good", text_request("good", max_tokens=8))
    events = [(r.request_id, r.WhichOneof("event"), r.error) async for r in client.rest()]
    [error] = [error for name, event, error in events if (name, event) == ("bad", "error")]
    assert error.code == grpc.StatusCode.INTERNAL.value[0]
    assert "secret" not in error.message
    assert [event for name, event, _ in events if name == "good"][-1] == "finished"


async def test_an_unexpected_fault_is_internal_is_logged_and_the_server_goes_on(
    stub: AsyncStub, caplog: pytest.LogCaptureFixture
) -> None:
    client = SessionClient(stub)
    await client.submit("bad", text_request("CRASH"))
    status = await client.error("bad")
    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    assert "secret" not in status.message
    [record] = caplog.records
    assert record.exc_info is not None
    assert "a secret of the server" in str(record.exc_info[1])
    await client.submit("bad", text_request("fine"))
    assert texts(await client.outcomes()) == {"bad": "fine"}


async def test_a_message_that_is_not_protobuf_ends_the_stream_and_its_requests(
    stub: AsyncStub, channel: grpc.aio.Channel, engine: FakeEngine
) -> None:
    engine.hold()
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/draftline.v1.InferenceService/Session")()
    await call.write(pb.SessionRequest(request_id="a", submit=text_request("a")).SerializeToString())
    await running(engine, 1)
    await call.write(b"\xff\xff\xff")
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    while not engine.cancelled:
        await asyncio.sleep(0.001)
    engine.release()
    await eventually_idle(engine)
