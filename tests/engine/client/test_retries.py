"""A client's batch and its requests come through limits, restarts and refusals, or fail with the server's reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from fake_engine import ByteTokenizer, FakeEngine
from free_ports import free_ports
from patience import PATIENCE_S, until

from draftline import AsyncClient, Constraint, RequestOutput, RetryPolicy, SamplingParams
from draftline.engine.client.pace import Pacer
from draftline.engine.errors import (
    CallFailedError,
    DeadlineExceededError,
    EngineStoppedError,
    InvalidRequestError,
    QueueFullError,
    UnauthenticatedError,
)
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server

QUICK = RetryPolicy(attempts=2, initial_s=0.01, max_s=0.05)
TOKEN = "a-long-enough-token"


def params(max_tokens: int, **options: object) -> SamplingParams:
    return SamplingParams.model_validate({"max_tokens": max_tokens, "temperature": 0, **options})


async def serve(engine: FakeEngine, port: int = 0, tokens: Path | None = None, **options: object) -> Server:
    server = Server(ServerConfig(port=port, tokens=None if tokens is None else str(tokens), **options))  # type: ignore[arg-type]
    await server.start()
    await server.serve(engine)
    return server


def held(make_engine: Callable[..., FakeEngine]) -> FakeEngine:
    """An engine that makes the steps that a test allows."""
    engine = make_engine()
    engine.hold()
    return engine


async def after_a_step(engine: FakeEngine, outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    """Let the engine make a step. Returns the next of a request's outputs."""
    await asyncio.to_thread(engine.wait_running, 1)
    await asyncio.to_thread(engine.step)
    return await anext(outputs)


@pytest.fixture
def tokens(tmp_path: Path) -> Callable[[str], Path]:
    def write(limits: str) -> Path:
        path = tmp_path / "tokens.yaml"
        path.write_text(f"tokens: [{{name: me, token: {TOKEN}, {limits}}}]")
        return path

    return write


async def test_a_new_client_does_not_wait_for_an_earlier_ones_failed_connections(
    make_engine: Callable[..., FakeEngine],
) -> None:
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    for _ in range(5):  # each failed connection doubles the wait
        async with AsyncClient(address, retry=RetryPolicy(attempts=1)) as early:
            with pytest.raises(EngineStoppedError):
                await early.submit("abc").result()
    server = await serve(make_engine(), port)
    async with AsyncClient(address, retry=RetryPolicy(attempts=1)) as client:
        assert (await client.submit("abc", params(3)).result()).outputs[0].text == "abc"
    await server.abort()


async def test_an_absent_server_is_waited_for_until_the_timeout(make_engine: Callable[..., FakeEngine]) -> None:
    [port] = free_ports(1)
    async with AsyncClient(f"127.0.0.1:{port}", retry=QUICK) as client:
        waiting = client.submit("abc", params(3), timeout=PATIENCE_S)
        await asyncio.sleep(0.5)  # many times two attempts
        server = await serve(make_engine(), port)
        assert (await waiting.result()).outputs[0].text == "abc"
        await server.abort()
        started = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceededError, match="within its timeout; before, failed to connect"):
            await client.submit("abc", timeout=1).result()
        assert asyncio.get_running_loop().time() - started > 0.5
        with pytest.raises(EngineStoppedError):  # without a timeout, attempts are counted
            await client.submit("abc").result()


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 5}], ids=["greedy", "seeded"])
async def test_a_request_whose_output_is_certain_outlives_its_server(
    sampling: dict[str, object], make_engine: Callable[..., FakeEngine]
) -> None:
    [port] = free_ports(1)
    engine = held(make_engine)
    first = await serve(engine, port)
    async with AsyncClient(f"127.0.0.1:{port}", retry=QUICK) as client:
        generation = client.submit("abcde", params(40, n=2, **sampling), timeout=PATIENCE_S)
        outputs, texts = aiter(generation), []
        for _ in range(3):
            texts.append((await after_a_step(engine, outputs)).outputs[0].text)
        await first.abort()
        second = await serve(make_engine(), port)
        texts += [output.outputs[0].text async for output in outputs]
        assert [output.text for output in (await generation.result()).outputs] == ["abcde" * 8] * 2
        assert texts == sorted(texts)  # what has been seen is not taken back
        await second.abort()


async def test_another_output_after_a_restart_is_an_error(
    make_engine: Callable[..., FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    [port] = free_ports(1)
    engine = held(make_engine)
    first = await serve(engine, port)
    async with AsyncClient(f"127.0.0.1:{port}", retry=QUICK) as client:
        generation = client.submit("abcde", params(4000), timeout=PATIENCE_S)
        outputs = aiter(generation)
        await after_a_step(engine, outputs)
        await first.abort()
        monkeypatch.setattr(ByteTokenizer, "encode", lambda self, text: list(text.upper().encode()))
        other = make_engine(step_s=0.002)
        second = await serve(other, port)
        with pytest.raises(CallFailedError, match="came back with another output"):
            await generation.result()
        await until(lambda: bool(other.cancelled))
        await second.abort()


async def test_a_request_whose_output_is_not_certain_ends_with_its_server(
    make_engine: Callable[..., FakeEngine],
) -> None:
    engine = held(make_engine)
    server = await serve(engine)
    async with AsyncClient(server.address, retry=QUICK) as client:
        generation = client.submit("abcde", params(400, temperature=1), timeout=PATIENCE_S)
        outputs = aiter(generation)
        await after_a_step(engine, outputs)
        await server.abort()
        with pytest.raises(EngineStoppedError):
            await generation.result()


@pytest.mark.parametrize(
    ("limits", "count"), [("max_requests: 4", 24), ("requests_per_minute: 1200", 1230)], ids=["at once", "a minute"]
)
async def test_a_batch_beyond_the_callers_limits_is_paced(
    limits: str, count: int, make_engine: Callable[..., FakeEngine], tokens: Callable[[str], Path]
) -> None:
    server = await serve(make_engine(max_waiting=4096, step_s=0.001), tokens=tokens(limits))
    async with AsyncClient(server.address, token=TOKEN, retry=RetryPolicy(attempts=3)) as client:
        outputs = await client.generate(["abc"] * count, params(3))
    assert [output.outputs[0].text for output in outputs] == ["abc"] * count
    await server.abort()


async def test_a_wrong_token_is_always_named(
    make_engine: Callable[..., FakeEngine], tokens: Callable[[str], Path]
) -> None:
    server = await serve(make_engine(), tokens=tokens("max_requests: 4"))
    for _ in range(150):
        async with AsyncClient(server.address, token="not-the-token-of-anyone") as client:
            with pytest.raises(UnauthenticatedError):
                await client.submit("abc" * 1000, params(1)).result()
    await server.abort()


async def test_too_many_sessions_are_always_named(make_engine: Callable[..., FakeEngine]) -> None:
    server = await serve(make_engine(step_s=0.01), max_sessions=1)
    never = RetryPolicy(attempts=1)
    async with AsyncClient(server.address) as first:
        running = first.submit("abc", params(4000))
        async for _ in running:
            break
        for _ in range(50):
            async with AsyncClient(server.address, retry=never) as client:
                with pytest.raises(QueueFullError, match="1 sessions are open"):
                    await client.submit("abc" * 1000, params(1)).result()
    await server.abort()


async def test_turns_shrink_where_they_are_refused_and_grow_where_they_are_taken() -> None:
    pace = Pacer()
    for _ in range(10):
        assert await pace.enter([], None)
    for _ in range(6):
        pace.leave(QueueFullError("full", 30.0))
    assert not await pace.enter([], 0.01)  # four are taken, and the server asks to wait
    pace.leave(None)  # one has ended: there is room
    assert await pace.enter([], 0.01)
    assert not await pace.enter([], 0.01)
    for _ in range(4):
        pace.leave(None)
    taken = 0
    while await pace.enter([], 0.01):
        taken += 1
    assert taken == 5


async def test_a_message_that_is_too_large_fails_its_request_alone(make_engine: Callable[..., FakeEngine]) -> None:
    """gRPC ends the stream of all."""
    server = await serve(make_engine(), max_request_mib=1)
    async with AsyncClient(server.address, retry=RetryPolicy(attempts=2, initial_s=0.01)) as client:
        short = [client.submit("abc", params(3)) for _ in range(3)]
        long = client.submit("x" * 2**20, params(3))
        with pytest.raises(InvalidRequestError, match=r"^request: .* at most 1048576 bytes"):
            await long.result()
        assert [(await generation.result()).outputs[0].text for generation in short] == ["abc"] * 3
        with pytest.raises(InvalidRequestError, match=r"^prompts\[1\]\.request: "):
            await client.generate(["abc", "x" * 2**20], params(3))
        with pytest.raises(InvalidRequestError, match=r"^request: "):
            await client.compile(Constraint(regex="x" * 2**20))
    await server.abort()
