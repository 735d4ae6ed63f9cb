"""Probes, disconnects, slow and idle clients, drains: no request outlives its client, and nothing is held for free."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from fake_engine import FakeEngine
from http_client import http_client
from patience import PATIENCE_S
from stepped_engine import SteppedEngine

from draftline.engine.errors import CannotListenError
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.http import protocol
from draftline.engine.server.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATHS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc", "max_tokens": 100, "ignore_eos": True},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 100, "ignore_eos": True},
}


def request(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


async def connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    assert server.http_address is not None
    host, _, port = server.http_address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def closed_by_server(reader: asyncio.StreamReader) -> None:
    """Wait until the server has closed the connection without an answer."""
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_engine() -> AsyncIterator[tuple[Server, SteppedEngine]]:
    engine = SteppedEngine()
    server = Server(ServerConfig(port=0, http_port=0))
    await server.start()
    await server.serve(engine)
    yield server, engine
    engine.release()
    await server.abort()
    engine.close()


@pytest.fixture
def stepped(one_engine: tuple[Server, SteppedEngine]) -> tuple[Server, SteppedEngine]:
    """A server of a real engine without requests: each test waits until its own have ended."""
    one_engine[1].forget_cancels()
    return one_engine


async def test_probes_follow_the_server(engine: FakeEngine) -> None:
    server = Server(ServerConfig(port=0, http_port=0))
    await server.start()
    async with http_client(server) as http:

        async def statuses() -> list[int]:
            return [(await http.get(path)).status_code for path in ("/live", "/health", "/ready", "/v1/models")]

        async def reason() -> str:
            return str((await http.get("/ready")).json()["status"])

        assert await statuses() == [200, 503, 503, 503]
        assert await reason() == "loading"
        loading = await http.post("/v1/completions", json={"prompt": "a"})
        assert loading.status_code == 503
        assert "loading" in loading.json()["error"]["message"]
        await server.serve(engine)
        assert await statuses() == [200, 200, 200, 200]
        assert await reason() == "ready"
        engine.hold()
        running = asyncio.ensure_future(http.post("/v1/completions", json={"prompt": "a", "max_tokens": 3}))
        await asyncio.to_thread(engine.wait_running, 1)
        draining = asyncio.ensure_future(server.drain())
        await asyncio.sleep(0)
        assert await statuses() == [200, 503, 503, 200]
        assert await reason() == "draining"
        refused = await http.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        engine.release()
        assert (await running).json()["choices"][0]["text"] == "aaa"
        assert await draining


async def test_a_port_in_use_is_reported(engine: FakeEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = Server(ServerConfig(port=0, http_port=taken.getsockname()[1]))
        with pytest.raises(CannotListenError, match="in use"):
            await server.start()
        await server.abort()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_disconnect_cancels_within_one_step(
    stepped: tuple[Server, SteppedEngine], path: str, stream: bool
) -> None:
    server, engine = stepped
    _, writer = await connect(server)
    writer.write(request(path, PATHS[path] | {"n": 2, "stream": stream}))
    await engine.steps(3)
    assert engine.taken_blocks > 0
    writer.close()
    await engine.cancels(1)
    await engine.steps(2)  # the step in flight when the cancel came, and one more
    async with asyncio.timeout(PATIENCE_S):
        await engine.freed()
        await server.wait_idle()


async def test_a_disconnect_of_several_prompts_cancels_all(stepped: tuple[Server, SteppedEngine]) -> None:
    server, engine = stepped
    _, writer = await connect(server)
    writer.write(request("/v1/completions", {"prompt": ["abc", "def", "x"], "max_tokens": 90, "ignore_eos": True}))
    await engine.steps(3)
    writer.close()
    await engine.cancels(3)
    await engine.steps(2)
    async with asyncio.timeout(PATIENCE_S):
        await engine.freed()
        await server.wait_idle()


async def test_a_client_that_pipelines_is_disconnected(stepped: tuple[Server, SteppedEngine]) -> None:
    server, engine = stepped
    reader, writer = await connect(server)
    asked = request("/v1/completions", PATHS["/v1/completions"])
    writer.write(asked)
    await engine.steps(2)
    writer.write(asked)
    await engine.cancels(1)
    await engine.steps(2)  # the step in flight when the cancel came, and one more
    await closed_by_server(reader)
    writer.close()
    async with asyncio.timeout(PATIENCE_S):
        await engine.freed()
        await server.wait_idle()


async def test_a_request_that_asks_for_another_protocol_is_served(serve: Any) -> None:
    server = await serve()
    asked = request("/v1/completions", {"prompt": "abc", "max_tokens": 2})
    reader, writer = await connect(server)
    upgrade = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    sent = asked.replace(b"content-type", upgrade + b"content-type", 1)
    for split in (10, len(sent) - 5, len(sent)):  # in the head, in the body, and behind it
        for part in (sent[:split], sent[split:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            answer = json.loads(await reader.readexactly(length))
        assert head.startswith(b"HTTP/1.1 200 ")
        assert answer["usage"]["completion_tokens"] == 2
    writer.close()


async def test_a_reader_that_stops_loses_its_requests(serve: Any, engine: FakeEngine) -> None:
    server = await serve(stall_timeout=0.5)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, _, port = str(server.http_address).rpartition(":")
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
    engine.pace(0.01)
    body = {"prompt": "abc", "max_tokens": 4000, "n": 64, "logprobs": 20, "stream": True}
    await asyncio.get_running_loop().sock_sendall(client, request("/v1/completions", body))
    await asyncio.to_thread(engine.wait_running, 1)
    async with asyncio.timeout(PATIENCE_S):
        await server.wait_idle()
    assert engine.cancelled
    client.close()
    async with http_client(server) as http:
        metrics = (await http.get("/metrics")).text
    assert 'call="/v1/completions",caller="",code="ABORTED"' in metrics


async def test_what_is_no_http_gets_an_error_like_others(serve: Any, engine: FakeEngine) -> None:
    server = await serve()
    for sent in (b"\x16\x03\x01\r\n\r\n", b"GET /live HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n"):
        reader, writer = await connect(server)
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_S):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["message"] == "the request is not valid HTTP/1.1"
        writer.close()
    engine.hold()
    reader, writer = await connect(server)
    writer.write(request("/v1/completions", {"prompt": "abc", "stream": True}))
    await asyncio.to_thread(engine.wait_running, 1)
    engine.step()
    await reader.readuntil(b"data: ")
    writer.write(b"\x16\x03\x01\r\n\r\n")
    rest = b""
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(PATIENCE_S):
            rest = await reader.read()
    assert b"HTTP/1.1 400" not in rest  # not in the middle of the stream
    writer.close()
    engine.release()


@pytest.mark.parametrize("upgrade", [b"", b"connection: upgrade\r\nupgrade: h2c\r\n"])
@pytest.mark.parametrize("behind", [b"", b"GET /live HTTP/1.1\r\n\r\n"])
async def test_a_request_line_of_http_2_is_refused_once(serve: Any, upgrade: bytes, behind: bytes) -> None:
    server = await serve()
    reader, writer = await connect(server)
    asked = request("/v1/completions", {"prompt": "abc", "max_tokens": 2}).replace(b"HTTP/1.1", b"HTTP/2.0", 1)
    writer.write(asked.replace(b"content-type", upgrade + b"content-type", 1) + behind)
    async with asyncio.timeout(PATIENCE_S):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 505 HTTP Version Not Supported\r\n")
    assert json.loads(body)["error"]["message"] == "HTTP/2.0: this port speaks HTTP/1.1"
    writer.close()


@pytest.mark.parametrize("more", [b"", b"connection: keep-alive\r\nexpect: 100-continue\r\n"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_its_connection(
    serve: Any, path: str, more: bytes
) -> None:
    server = await serve()
    texts = []
    for stream in (True, False):
        reader, writer = await connect(server)
        asked = request(path, {**PATHS[path], "max_tokens": 3, "stream": stream}).replace(b"HTTP/1.1", b"HTTP/1.0")
        writer.write(asked.replace(b"content-type", more + b"content-type", 1))
        async with asyncio.timeout(PATIENCE_S):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        lines = head.lower().split(b"\r\n")
        assert lines[0].startswith(b"http/1.1 200 ")
        assert b"connection: close" in lines
        assert not any(line.startswith(b"transfer-encoding") for line in lines)
        if stream:
            events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n")]
            assert events[-2:] == [b"[DONE]", b""]
            parts = [choice for event in events[:-2] for choice in json.loads(event)["choices"]]
            texts.append("".join(part.get("text", "") + part.get("delta", {}).get("content", "") for part in parts))
        else:
            [choice] = json.loads(body)["choices"]
            texts.append(choice.get("text") or choice["message"]["content"])
    assert texts[0] == texts[1] != ""


async def test_a_stream_says_once_that_its_connection_closes(serve: Any) -> None:
    server = await serve()
    reader, writer = await connect(server)
    asked = request("/v1/completions", {"prompt": "abc", "max_tokens": 2, "stream": True})
    writer.write(asked.replace(b"content-type", b"connection: close\r\ncontent-type", 1))
    async with asyncio.timeout(PATIENCE_S):
        head, _, _ = (await reader.read()).partition(b"\r\n\r\n")
    assert [line for line in head.split(b"\r\n") if line.startswith(b"connection:")] == [b"connection: close"]
    writer.close()


async def test_connections_are_counted(serve: Any) -> None:
    server = await serve()
    idle = [await connect(server) for _ in range(3)]
    async with http_client(server) as http:
        metrics = (await http.get("/metrics")).text
    [count] = [line.split()[-1] for line in metrics.splitlines() if line.startswith("draftline_open_connections")]
    assert float(count) >= 4
    for _, writer in idle:
        writer.close()


async def test_slow_and_endless_headers_are_cut_off(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADERS_TIMEOUT_S", 0.2)
    server = await serve()
    for sent in (b"", b"POST /v1/completions HTTP/1.1\r\nhost: local"):
        reader, writer = await connect(server)
        writer.write(sent)
        await closed_by_server(reader)
        writer.close()
    monkeypatch.setattr(protocol, "HEADERS_TIMEOUT_S", 20)
    reader, writer = await connect(server)
    writer.write(b"GET /live HTTP/1.1\r\n")
    for _ in range(100):
        writer.write(b"x: " + b"y" * 9000 + b"\r\n")
    await closed_by_server(reader)
    writer.close()


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("upgrade", [b"", b"upgrade: h2c\r\nconnection: upgrade\r\n"])
async def test_headers_have_one_limit_however_they_arrive(serve: Any, at_once: bool, upgrade: bytes) -> None:
    server = await serve()
    reader, writer = await connect(server)
    for size, status in ((protocol.MAX_HEADERS, b"200"), (protocol.MAX_HEADERS + 1, b"431")):
        begin = b"GET /live HTTP/1.1\r\nhost: localhost\r\n" + upgrade + b"x: "
        sent = begin + b"y" * (size - len(begin) - 4) + b"\r\n\r\n"
        parts = [sent] if at_once else [sent[at : at + 9000] for at in range(0, len(sent), 9000)]
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status)
        if status == b"200":
            assert json.loads(await reader.readuntil(b"}")) == {"status": "live"}
    assert json.loads(await reader.read())["error"]["message"].endswith("are larger than 64 KiB")
    writer.close()


async def test_a_body_that_does_not_arrive(serve: Any) -> None:
    server = await serve(stall_timeout=0.2)
    reader, writer = await connect(server)
    writer.write(request("/v1/completions", {"prompt": "abc"})[:-3])
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_comment_keeps_a_silent_stream_alive(
    serve: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftline.engine.server.http import stream

    monkeypatch.setattr(stream, "KEEP_ALIVE_S", 0.1)
    server = await serve()
    engine.hold()
    reader, writer = await connect(server)
    writer.write(request("/v1/completions", {"prompt": "abc", "stream": True}))
    async with asyncio.timeout(PATIENCE_S):
        while not (await reader.readline()).startswith(b": ping"):
            pass
    engine.release()
    writer.close()


async def test_a_drain_that_takes_too_long_tells_clients(serve: Any, engine: FakeEngine) -> None:
    server = await serve(drain_timeout=0.1)
    engine.hold()
    connections = []
    for streams in (True, False):
        reader, writer = await connect(server)
        writer.write(request("/v1/completions", {"prompt": "abc", "stream": streams}))
        connections.append((reader, writer))
    unread_reader, unread_writer = await connect(server)
    unread_writer.write(request("/v1/completions", {"prompt": "abc"})[:-3])  # its body never arrives
    connections.append((unread_reader, unread_writer))
    await asyncio.to_thread(engine.wait_running, 2)
    engine.step()
    await connections[0][0].readuntil(b"data: ")  # the stream has begun
    assert not await server.drain()
    assert len(engine.cancelled) == 2
    async with asyncio.timeout(PATIENCE_S):
        stream, whole, unread = [await reader.read() for reader, _ in connections]
    for answer in (stream, whole, unread):
        assert b"the server shut down before it had finished the request" in answer
    assert stream.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert whole.startswith(b"HTTP/1.1 503 ")
    assert unread.startswith(b"HTTP/1.1 503 ")
    for _, writer in connections:
        writer.close()
    engine.release()
