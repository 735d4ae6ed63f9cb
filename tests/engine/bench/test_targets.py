"""Load over gRPC, over HTTP and offline, on an engine whose tokens are known; and servers that misbehave."""

from __future__ import annotations

import asyncio
import gzip
import io
import itertools
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine

from draftline.engine.bench import measure
from draftline.engine.bench.contenders.servers import PEERS, Peer, PeerError, program_of, started, version_of
from draftline.engine.bench.contenders.shaped import shaped
from draftline.engine.bench.lines import ResultLines, result_lines
from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.load.config import LoadConfig
from draftline.engine.bench.measure import LoadBench
from draftline.engine.bench.tables import load_table
from draftline.engine.bench.targets import grpc, http
from draftline.engine.bench.targets.connect import connect
from draftline.engine.bench.targets.target import Question, RequestError, Target
from draftline.engine.chat.messages import Chat
from draftline.engine.client.tls import Tls
from draftline.engine.config import EngineConfig
from draftline.engine.errors import CallFailedError, DraftlineError, InvalidRequestError, UsageError
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server
from draftline.engine.stats import DevicePeak, EngineStats, WorkCounts

MODELS = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 99}]}


@asynccontextmanager
async def http_server(
    answers: dict[str, bytes], seen: list[tuple[str, dict[str, object]]], headers: bytes = b""
) -> AsyncIterator[str]:
    """A server that answers paths with fixed bodies, and with these headers. Others are 404. ``seen`` has connections, too."""

    tasks: set[asyncio.Task[object] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        seen.append(("connection", {}))
        while (line := await reader.readline()).strip():
            path, length = line.split()[1].decode(), 0
            while header := (await reader.readline()).strip().lower():
                if header.startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            body = await reader.readexactly(length)
            seen.append((path, json.loads(body) if body else {}))
            content = answers.get(path)
            status = "404 Not Found" if content is None else "200 OK"
            if content is not None and content.startswith(b"429"):
                status, content = "429 Too Many Requests", content[3:]
            head = f"HTTP/1.1 {status}\r\ncontent-length: {len(content or b'')}\r\n"
            writer.write(head.encode() + headers + b"\r\n" + (content or b""))
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*(task for task in tasks if task is not None))


def events(*chunks: object, done: bool = True) -> bytes:
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return (": a comment\n\n" + text + ("data: [DONE]\n\n" if done else "")).encode()


USAGE = {"completion_tokens": 4, "prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}
CHAT_USAGE = {**USAGE, "completion_tokens_details": {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 1}}
ANSWERS = {
    "/v1/models": json.dumps(MODELS).encode(),
    "/version": b'{"version": "9.9"}',
    "/v1/completions": events(
        {"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}, {"choices": [], "usage": USAGE}
    ),
    "/v1/chat/completions": events(
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [], "usage": CHAT_USAGE},
    ),
}


def question(prompt: object) -> Question:
    return Question(prompt, 4, True, 0.0, 5)  # type: ignore[arg-type]


async def ask(target: Target, prompt: object) -> Answer:
    answer = Answer(0, 0)
    await target.ask(question(prompt), answer)
    return answer


async def test_an_openai_compatible_server() -> None:
    seen: list[tuple[str, dict[str, object]]] = []
    async with http_server(ANSWERS, seen) as url:
        target = await connect(f"{url}/v1", token="t")
        info = target.info
        assert (info.engine, info.version, info.model, info.max_model_len, info.form) == (
            "vllm",
            "9.9",
            "m",
            99,
            "text",
        )
        text, ids, chat = await ask(target, "x"), await ask(target, (1, 2)), await ask(target, Chat([("user", "x")]))
        await target.close()
    assert (text.text, text.tokens, text.prompt_tokens, text.cached_tokens, text.drafted) == ("ab", 4, 7, 3, None)
    assert len(text.arrivals) == 2
    assert (chat.text, chat.drafted, chat.accepted) == ("a", 3, 2)
    assert ids.tokens == 4
    bodies = [body for path, body in seen if path.endswith("completions")]
    assert bodies[0]["prompt"] == "x"
    assert bodies[0]["ignore_eos"] is True
    assert bodies[1]["prompt"] == [1, 2]
    assert bodies[2]["messages"] == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'429{"error": {"message": "busy"}}', "429"),
        (events({"error": {"message": "broken", "code": 500}}), "500"),
        (events({"choices": [{"text": "a"}]}, done=False), "CONNECTION"),
        (events({"choices": [{"text": "a"}], "usage": USAGE}, done=False), "CONNECTION"),
        (events({"choices": [{"text": "a"}]}), "PROTOCOL"),
        (events([1]), "PROTOCOL"),
        (b"data: {oops\n\ndata: [DONE]\n\n", "PROTOCOL"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "PROTOCOL"),
        (b"<html></html>", "PROTOCOL"),
    ],
    ids=[
        "refused",
        "an error in the stream",
        "cut off",
        "cut off, with usage so far",
        "tokens are not counted",
        "no object",
        "no JSON",
        "too deep",
        "no events",
    ],
)
async def test_errors_of_a_server_have_codes(body: bytes, code: str) -> None:
    async with http_server({**ANSWERS, "/v1/completions": body}, []) as url:
        target = await connect(url, "m")
        with pytest.raises(RequestError) as caught:
            await ask(target, "x")
        await target.close()
    assert caught.value.code == code


@pytest.mark.parametrize(
    "body",
    [
        events({"choices": [{"text": "a"}], "error": None, "usage": None}, {"choices": [], "usage": USAGE}),
        events({"choices": [{"text": None, "delta": None}]}, {"choices": [{"text": "a"}], "usage": USAGE}),
        events({"choices": [{"text": "a", "finish_reason": "length"}], "usage": USAGE}, done=False),
        events({"choices": [{"text": "a"}], "usage": USAGE}).rstrip(),
        events({"choices": [{"text": "a"}], "usage": USAGE}).replace(b"\n", b"\r\n").replace(b"data: ", b"data:"),
        events({"choices": [{"text": "a"}], "usage": {**USAGE, "completion_tokens": 4.0}}),
    ],
    ids=["no error", "nulls", "no [DONE]", "no last line's end", "carriage returns", "floats"],
)
async def test_servers_differ_in_what_says_the_same(body: bytes) -> None:
    async with http_server({**ANSWERS, "/v1/completions": body}, []) as url:
        target = await connect(url, "m")
        answer = await ask(target, "x")
        await target.close()
    assert (answer.text, answer.tokens, len(answer.arrivals)) == ("a", 4, 1)


async def test_a_compressed_stream_is_read() -> None:
    bodies = {path: gzip.compress(body) for path, body in ANSWERS.items()}
    async with http_server(bodies, [], b"content-encoding: gzip\r\n") as url:
        target = await connect(url, "m")
        answer = await ask(target, "x")
        await target.close()
    assert answer.text == "ab"


async def test_requests_one_after_the_other_share_a_connection() -> None:
    seen: list[tuple[str, dict[str, object]]] = []
    async with http_server(ANSWERS, seen) as url:
        target = await connect(url, "m")
        for _ in range(3):
            await ask(target, "x")
        await target.close()
    assert [path for path, _ in seen].count("connection") == 1


@pytest.mark.parametrize("listed", [b"<html></html>", b"[]", b'{"data": [{}]}', b'{"data": 1}'])
async def test_what_is_no_list_of_models_is_refused(listed: bytes) -> None:
    async with http_server({"/v1/models": listed}, []) as url:
        with pytest.raises(CallFailedError, match="no list of models"):
            await connect(url)


async def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ASKED_S", 0.2)
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client has gone
        writer.close()
        closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(CallFailedError, match=r"does not answer within 0\.2 s"):
        await connect(url)
    async with asyncio.timeout(10):
        await closed.wait()
    server.close()


async def test_a_server_without_models_or_with_others_is_refused() -> None:
    async with http_server({"/v1/models": b'{"data": []}'}, []) as url:
        with pytest.raises(CallFailedError, match="lists no models"):
            await connect(url)
    async with http_server(ANSWERS, []) as url:
        with pytest.raises(UsageError, match="--model: other: the server has m"):
            await connect(url, "other")
    async with http_server({}, []) as url:
        with pytest.raises(CallFailedError, match="404"):
            await connect(url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:1", "grpc://127.0.0.1:1"])
async def test_where_nobody_listens_there_is_one_error(url: str) -> None:
    with pytest.raises(DraftlineError, match=r"127\.0\.0\.1:1"):
        await connect(url)


@pytest.mark.parametrize(
    ("url", "tls", "problem"),
    [
        ("ftp://x", None, "must be http://, https:// or grpc://"),
        ("http://[::1", None, "is no URL: Invalid IPv6 URL"),
        ("http://127.0.0.1:99999", None, "is no URL: Port out of range"),
        ("http://", None, "must be a URL"),
        ("http://127.0.0.1:1", Tls(), "has no TLS"),
        ("https://127.0.0.1:1", Tls(ca="missing.pem"), "--ca: missing.pem: No such file"),
        (
            "https://127.0.0.1:1",
            Tls(cert="c.pem", key="k.pem"),
            "--client-cert and --client-key: c.pem, k.pem",
        ),
    ],
)
async def test_a_url_that_cannot_be_used_is_refused(url: str, tls: Tls | None, problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        await connect(url, tls=tls)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "grpc://127.0.0.1:1"])
async def test_a_token_that_no_header_can_hold_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="token: has a character at index 1"):
        await connect(url, token="aü")


async def test_a_load_writes_lines_with_all_that_was_measured() -> None:
    written: list[str] = []

    class Out:
        write = staticmethod(written.append)

        def flush(self) -> None:
            pass

    async with http_server(ANSWERS, []) as url:
        target = await connect(url)
        config = LoadConfig(conversations=3, prompt_len="4", output_len="4", repeats=2)
        answers: list[Answer] = []
        bench = LoadBench(target, config, ResultLines(Out(), {"commit": "c"}))  # type: ignore[arg-type]
        lines = await bench.measure(config.resolved(), {"clients": 1}, answers.append)
        await target.close()
    assert [json.loads(text) for text in written] == lines
    assert len(answers) == 6 == 2 * bench.requests(config.resolved())
    assert [(line["run"], line["requests"], line["clients"], line["commit"]) for line in lines] == [
        (1, 3, 1, "c"),
        (2, 3, 1, "c"),
    ]
    assert lines[0]["cache_hit_rate"] == round(3 / 7, 4)
    assert lines[0]["engine_version"] == "9.9"
    assert lines[0]["load_options"]["output_len"] == "4"


async def test_the_garbage_collector_stands_back_before_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it holds up the tokens of one answer while it looks through all modules."""
    order: list[str] = []
    monkeypatch.setattr(measure, "keep_heap", lambda: order.append("kept"))
    async with http_server(ANSWERS, []) as url:
        target = await connect(url)
        config = LoadConfig(conversations=2, prompt_len="4", output_len="4", repeats=2)
        bench = LoadBench(target, config, ResultLines(io.StringIO(), {}))
        await bench.measure(config.resolved(), {}, lambda _: order.append("answer"))
        await target.close()
    assert order == ["kept"] + 4 * ["answer"]


async def measured_over_grpc(engine: FakeEngine, config: ServerConfig, token: str | None = None) -> dict[str, Any]:
    """The line of a small load on a server of ``engine``."""
    server = Server(config)
    await server.start()
    await server.serve(engine)
    target = await connect(f"grpc://{server.address}", token=token)
    load = LoadConfig(conversations=3, prompt_len="4", output_len="4", warm_up=0)
    with result_lines(None, {}) as lines:
        [line] = await LoadBench(target, load, lines).measure(load.resolved(), {}, lambda answer: None)
    await target.close()
    await server.abort()
    return line


async def test_a_load_over_grpc_waits_while_the_server_compiles_kernels(
    make_engine: Callable[..., FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    idle, left = engine.stats(), [2, 1]
    monkeypatch.setattr(engine, "stats", lambda: replace(idle, kernels_compiling=left.pop(0) if left else 0))
    monkeypatch.setattr(grpc, "_PAUSE_S", 0.0)
    server = Server(ServerConfig(port=0))
    await server.start()
    await server.serve(engine)
    target = await connect(f"grpc://{server.address}")
    await target.ready()
    assert not left
    await target.close()
    await server.abort()


async def test_a_load_over_grpc_has_the_servers_utilization(
    make_engine: Callable[..., FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    engine.info = replace(engine.info, peak=DevicePeak(1000.0, 100.0))
    idle, looks = engine.stats(), itertools.count(1)

    def stats() -> EngineStats:
        """Between any two looks, a quarter of the device's arithmetic and half of its memory traffic."""
        look = next(looks)
        return replace(idle, steps=4 * look, work=WorkCounts(4 * look, 2.0 * look, 500.0 * look, 100.0 * look))

    monkeypatch.setattr(engine, "stats", stats)
    line = await measured_over_grpc(engine, ServerConfig(port=0))
    assert (line["requests"], line["failed"], line["protocol"]) == (3, 0, "grpc")
    use = line["utilization"]
    assert (use["step_s"], use["mfu"], use["bandwidth"]) == (0.5, 0.25, 0.5)
    shown = load_table([line], [])
    assert [str(column.header) for column in shown.columns][-1] == "MFU / bandwidth"
    assert list(shown.columns[-1].cells) == ["25% / 50%"]
    assert len(load_table([{**line, "utilization": None}], []).columns) == len(shown.columns) - 1


async def test_without_the_right_to_metrics_there_is_no_utilization(
    make_engine: Callable[..., FakeEngine], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens: [{name: me, token: a-long-enough-token}]")
    config = ServerConfig(port=0, tokens=str(tokens))
    line = await measured_over_grpc(make_engine(), config, "a-long-enough-token")
    assert (line["failed"], line["utilization"]) == (0, None)


async def test_a_warm_up_that_fails_says_why_and_what_to_try() -> None:
    async with http_server({**ANSWERS, "/v1/completions": b"429{}"}, []) as url:
        target = await connect(url)
        config = LoadConfig(conversations=2)
        with pytest.raises(CallFailedError, match="warm-up failed with 429"):
            await LoadBench(target, config, ResultLines(None, {})).measure(config.resolved(), {}, print)  # type: ignore[arg-type]
        await target.close()


def test_the_commands_of_other_engines_have_the_model_and_the_port() -> None:
    for peer in PEERS.values():
        command = peer.command("/opt/x/python", "/models/m", 8123, False)
        assert command[0] == "/opt/x/python"
        assert "/models/m" in command
        assert "8123" in command
    for name in ("draftline", "vllm", "sglang"):
        assert "dummy" in PEERS[name].command("p", "m", 1, True)
    for name in ("llama.cpp", "transformers"):
        with pytest.raises(UsageError, match="random weights"):
            PEERS[name].command("p", "m", 1, True)


def test_an_engine_that_is_not_installed_is_named() -> None:
    absent = Peer("none", "no_such_module_at_all", "none", PEERS["vllm"].command)
    with pytest.raises(UsageError, match=r"none is not installed for .*; name its Python as none="):
        program_of(absent, None)
    with pytest.raises(UsageError, match="cannot run /no/python"):
        program_of(absent, "/no/python")
    with pytest.raises(UsageError, match="there is no program /no/llama-server"):
        program_of(PEERS["llama.cpp"], "/no/llama-server")


_SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{"data": [{"id": "m"}]}')
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def _fake(source: str) -> Callable[[str, str, int, bool], list[str]]:
    return lambda python, model, port, random: [python, "-c", source, str(port)]


def test_a_server_is_started_waited_for_and_ended() -> None:
    peer = Peer("fake", "json", "pytest", _fake(_SERVER))
    python = program_of(peer, None)
    with started(peer, python, "m", False, ["--flag"]) as running:
        assert running.url.startswith("http://127.0.0.1:")
        assert running.version == version_of(peer, python) == pytest.__version__
        assert running.command[-1] == "--flag"


def test_a_server_that_ends_shows_its_last_words() -> None:
    peer = Peer("fake", "json", "pytest", _fake("print('no memory'); raise SystemExit(3)"))
    with (
        pytest.raises(PeerError, match="fake ended with status 3: no memory"),
        started(peer, program_of(peer, None), "m", False, []),
    ):
        pass


def test_a_server_and_a_shape_need_a_folder_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    peer = Peer("fake", "json", "pytest", _fake(_SERVER))
    for needing in (started(peer, sys.executable, "m", False, []), shaped(EngineConfig(), "qwen3-0.6b")):
        with pytest.raises(UsageError, match=r"no folder for temporary files can be written \(set TMPDIR\)"), needing:
            pass
