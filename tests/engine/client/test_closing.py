"""Closing a client: every call that runs ends with an error, and nothing is printed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest
from fake_engine import FakeEngine
from patience import PATIENCE_S

from draftline import AsyncClient, Client, Constraint, RetryPolicy, SamplingParams
from draftline.engine.errors import CallFailedError, DraftlineError
from draftline.engine.server.server import Server

PATIENT = RetryPolicy(attempts=1000, initial_s=60, max_s=60)
"""Waits between two attempts for longer than any test."""

CONSTRAINT = Constraint(regex="a")
CALLS: dict[str, Callable[[Client | AsyncClient], object]] = {
    "model": lambda client: client.model(),
    "compile": lambda client: client.compile(CONSTRAINT),
    "extract": lambda client: client.extract("a", CONSTRAINT, use_tqdm=False),
    "generate": lambda client: client.generate("a"),
}


@pytest.fixture(params=["absent", "silent"])
async def address(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Of a server that cannot be reached, or that accepts connections and never answers."""
    if request.param == "absent":
        yield "127.0.0.1:1"
        return
    over = asyncio.Event()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    over.set()
    server.close()


@pytest.mark.parametrize("call", CALLS)
async def test_closing_ends_the_calls_of_other_threads(call: str, address: str) -> None:
    errors: list[DraftlineError] = []
    client = Client(address, retry=PATIENT)

    def wait() -> None:
        try:
            CALLS[call](client)
        except DraftlineError as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    await asyncio.sleep(0.2)
    await asyncio.to_thread(client.close)
    await asyncio.to_thread(thread.join, PATIENCE_S)
    assert [(type(error), str(error)) for error in errors] == [(CallFailedError, "the client was closed")]


async def test_a_closed_client_opens_no_session(address: str) -> None:
    client = AsyncClient(address)
    await client.close()
    with pytest.raises(CallFailedError, match="the client is closed"):
        client.open_session()


@pytest.mark.parametrize("call", CALLS)
async def test_closing_ends_the_calls_of_other_tasks(call: str, address: str) -> None:
    client = AsyncClient(address, retry=PATIENT)
    running = asyncio.ensure_future(CALLS[call](client))  # type: ignore[arg-type]
    await asyncio.sleep(0.2)
    await client.close()
    with pytest.raises(CallFailedError, match="the client was closed"):
        await asyncio.wait_for(running, PATIENCE_S)
    with pytest.raises(CallFailedError, match="the client is closed"):
        await CALLS[call](client)  # type: ignore[misc]


async def test_leaving_an_iteration_of_a_closed_client_is_silent(
    server: Server, make_engine: Callable[..., FakeEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    await server.serve(make_engine(step_s=0.002))

    def leave() -> None:
        client = Client(server.address)
        request = client.submit("abc", SamplingParams(max_tokens=4000))
        outputs = iter(request)
        next(outputs)
        client.close()
        outputs.close()  # type: ignore[attr-defined]
        request.cancel()
        with pytest.raises(CallFailedError, match="closed"):
            request.result()

    await asyncio.to_thread(leave)
    assert capsys.readouterr().err == ""
