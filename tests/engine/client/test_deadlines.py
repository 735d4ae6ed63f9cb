"""A timeout holds for all that a call does, also before its first request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from fake_engine import FakeEngine

from draftline import AsyncClient, Constraint, RetryPolicy
from draftline.engine.errors import DeadlineExceededError, EngineStoppedError
from draftline.engine.server.server import Server

CONSTRAINT = Constraint(regex="a")


async def late(client: AsyncClient) -> str:
    """Extract from two texts, which are both late. Returns the errors' message."""
    async with asyncio.timeout(60):
        results = await client.extract(["a", "b"], CONSTRAINT, timeout=0.5, use_tqdm=False)
    assert [result.index for result in results] == [0, 1]
    assert [type(result.error) for result in results] == [DeadlineExceededError] * 2
    assert str(results[0].error) == str(results[1].error)
    return str(results[0].error)


@pytest.mark.parametrize("retry", [None, RetryPolicy(initial_s=60, max_s=60)])
async def test_an_extraction_from_an_absent_server_ends_in_time(retry: RetryPolicy | None) -> None:
    async with AsyncClient("127.0.0.1:1", retry=retry) as client:
        assert "before, failed to connect" in await late(client)


async def test_an_extraction_from_a_silent_server_ends_in_time() -> None:
    over = asyncio.Event()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with AsyncClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        await late(client)
    over.set()
    server.close()


async def test_describing_the_model_counts_toward_the_timeout(
    server: Server, make_engine: Callable[..., FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncClient(server.address, retry=RetryPolicy(initial_s=0.01, max_s=0.05)) as client:
        timeouts: list[float] = []
        start = client._start
        monkeypatch.setattr(client, "_start", lambda request: timeouts.append(request.timeout_s) or start(request))
        extraction = asyncio.create_task(client.extract("a", CONSTRAINT, timeout=60, use_tqdm=False))
        await asyncio.sleep(0.5)
        await server.serve(make_engine())
        await extraction
    assert 0 < timeouts[0] <= 59.6


async def test_without_another_attempt_an_absent_server_is_named() -> None:
    async with AsyncClient("127.0.0.1:1", retry=RetryPolicy(attempts=1)) as client:
        with pytest.raises(EngineStoppedError, match="failed to connect"):
            await client.extract("a", CONSTRAINT, timeout=60, use_tqdm=False)
