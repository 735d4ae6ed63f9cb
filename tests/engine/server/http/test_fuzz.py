"""Random HTTP requests: bad JSON, types, sizes, encodings and headers; clients that are slow, half-closed or gone.

A real engine behind a real socket. None gets a 500, waits without end, or leaves a connection, a request or a block behind.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest
from patience import PATIENCE_S
from stepped_engine import SteppedEngine

from draftline.engine.server.config import ServerConfig
from draftline.engine.server.http.app import ENDPOINTS, TOKEN_ENDPOINTS
from draftline.engine.server.http.fields import INERT
from draftline.engine.server.http.listener import HttpListener
from draftline.engine.server.server import Server

AT_ONCE = 16

BODIES = {endpoint.path: endpoint.body for endpoint in (*ENDPOINTS, *TOKEN_ENDPOINTS)}
PATHS = [*BODIES, "/v1/models", "/v1/models/x", "/metrics", "/version", "/health", "/openapi.json", "/nothing", "/%ff"]

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", 1]}}, "required": ["a"], "additionalProperties": False}

USUAL: dict[str, list[Any]] = {
    "prompt": ["a", "hello", "héllo \U0001f600", [1, 2, 3], ["a", "b"], [[1], [2, 3]], "", [], "a" * 70000],
    "messages": [
        [{"role": "user", "content": "a"}],
        [],
        [{"role": "x"}],
        [{"role": "user", "content": [{"type": "text"}]}],
    ],
    "input": ["a", [{"role": "user", "content": "a"}], [{"type": "function_call"}]],
    "tokens": [[1, 2], [-1], [2**40], list(range(9))],
    "max_tokens": [1, 3, 8],
    "max_completion_tokens": [1, 3],
    "max_output_tokens": [1, 3],
    "max_new_tokens": [1, 3],
    "stream": [True, False],
    "n": [1, 2, 3],
    "temperature": [0, 0.7, 1],
    "response_format": [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/x"}}},
    ],
    "structured_outputs": [
        {"regex": "[a-c]+"},
        {"regex": "("},
        {"choice": ["a", "b"]},
        {"grammar": "x"},
        {"json": SCHEMA},
    ],
    "stop": ["a", ["b", "c"], []],
    "logprobs": [0, 2, True],
    "stream_options": [{"include_usage": True}],
    "chat_template_kwargs": [{"a": 1}, {"messages": []}],
}

ODD: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63,
        2**200,
        -(2**70),
        0.5,
        1e308,
        -0.0,
        "",
        "x",
        "\u0000",
        "\ud7ff",
        "a" * 300,
    ),
    *([], {}, [[]], [None], ["x", 1], {"x": {}}, {"type": "json_schema"}, {"type": []}, [[[[[[]]]]]]),
]

RAW = [
    *(b"", b"{", b"[]", b"null", b"1", b'"a"', b'{"a":', b'{"prompt": "a"', b"\xff\xfe", b"{" * 3000, b"[" * 3000),
    *(
        b'{"prompt": "\\ud800"}',
        b'{"prompt": NaN}',
        b'{"prompt": "a", "prompt": 1}',
        b'{"prompt": 1e999}',
        b"\x00" * 64,
    ),
    *(
        b'{"prompt": "\x01"}',
        b'{"prompt": "a"} x',
        b'{"": 1}',
        b'{"temperature": 0.' + b"1" * 5000 + b', "prompt": "a"}',
    ),
]

HEADERS = [
    *(
        b"x-request-id: \xff\xfe",
        b"x-request-id: " + b"a" * 400,
        b"traceparent: x",
        b"origin: null",
        b"host: evil.example",
    ),
    *(
        b"content-length: -1",
        b"content-length: 99999999999999999999",
        b"content-length: 99999999999",
        b"content-length: 5, 5",
        b"transfer-encoding: chunked",
    ),
    *(
        b"expect: 100-continue",
        b"connection: close",
        b"connection: upgrade\r\nupgrade: websocket",
        b"content-encoding: gzip",
    ),
    *(
        b"content-type: application/json; charset=latin-1",
        b"authorization: Bearer x",
        b"bad header",
        b": x",
        b"x:" + b"y" * 70000,
    ),
]


class Fuzz:
    """Makes random requests, from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def request(self) -> tuple[list[bytes], bool]:
        """The parts of a request as they are sent, and whether it is well-formed HTTP that must be answered."""
        rng = self._random
        path = rng.choice([*BODIES, *BODIES, *PATHS])
        method = rng.choice(["POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
        if rng.random() < 0.9:
            method = "POST" if path in BODIES else "GET"
        content = rng.choice(RAW) if rng.random() < 0.15 else self._json(path)
        if rng.random() < 0.05:
            content = bytes(rng.randrange(256) for _ in range(rng.randrange(200)))
        odd = rng.sample(HEADERS, rng.choice([0, 0, 0, 1, 2]))
        lines = [f"{method} {path} HTTP/1.1".encode(), b"host: 127.0.0.1", b"content-type: application/json", *odd]
        if not any(b"content-length" in line or b"transfer" in line for line in odd):
            lines.append(f"content-length: {len(content)}".encode())
        sent = b"\r\n".join(lines) + b"\r\n\r\n" + content
        whole = not odd
        match rng.randrange(12):
            case 0:  # the rest never comes
                return [sent[: rng.randrange(len(sent))]], False
            case 1:
                cut = rng.randrange(len(sent))
                return [sent[:cut], sent[cut:]], whole
            case 2:  # a broken line of the request
                return [bytes(rng.randrange(256) for _ in range(30)) + sent], False
            case _:
                return [sent], whole

    def leaves(self) -> str:
        """How the client leaves: it reads everything, or it closes its side or all before the answer."""
        return self._random.choice(["reads", "reads", "reads", "reads", "half-closes", "leaves"])

    def _json(self, path: str) -> bytes:
        rng = self._random
        fields = list(BODIES[path].model_fields) if path in BODIES else ["a"]
        body: dict[str, Any] = {}
        for name in ("prompt", "messages", "input", "tokens"):
            if name in fields and rng.random() < 0.95:
                body[name] = rng.choice(USUAL[name][:1] * 8 + USUAL[name])
        for name in fields:
            if name.startswith("max_") and rng.random() < 0.9:
                body[name] = rng.choice([1, 3, 8])
        for name in rng.sample(fields, min(len(fields), rng.choice([0, 0, 1, 2, 3]))):
            usual = USUAL.get(name, ODD)
            body[name] = rng.choice(usual if rng.random() < 0.7 else ODD)
        if rng.random() < 0.15:
            body[rng.choice([*INERT, "unknown", "a" * 1000, "\u0000"])] = rng.choice(ODD)
        return json.dumps(body).encode()


async def one(fuzz: Fuzz, host: str, port: int) -> str:
    """Send one request. Returns its status, or how it ended."""
    parts, must_answer = fuzz.request()
    how = fuzz.leaves()
    reader, writer = await asyncio.open_connection(host, port)
    received = b""
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.005 * (len(parts) - 1))
        if how == "half-closes" or not must_answer:
            writer.write_eof()
        if how != "leaves":
            async with asyncio.timeout(PATIENCE_S):
                received = await reader.readline()
                if received.startswith(b"HTTP/1.1 100"):
                    await reader.readline()
                    received = await reader.readline()
                if b"text/event-stream" in await reader.readuntil(b"\r\n\r\n"):
                    rest = await reader.readuntil(b"\r\n0\r\n\r\n")
                    assert b'"type":"server_error"' not in rest, parts
    except TimeoutError:  # an OSError, too
        raise AssertionError(f"no answer within {PATIENCE_S} s to {parts}") from None
    except (OSError, asyncio.IncompleteReadError):
        received = received or b"closed"
    finally:
        writer.close()
    status = received.split(b" ")[1].decode() if received.startswith(b"HTTP/1.1 ") else "closed"
    assert status != "500", parts
    assert status != "closed" or not must_answer or how != "reads", parts
    return status


async def run(seed: int, count: int) -> Counter[str]:
    engine = SteppedEngine(num_slots=8, max_waiting=64, max_waiting_tokens=1 << 16)
    engine.release()
    server = Server(ServerConfig(port=0, http_port=0, log_requests=False, stall_timeout=2))
    await server.start()
    await server.serve(engine)
    address, _, port = str(server.http_address).rpartition(":")
    fuzz, statuses, left = Fuzz(seed), Counter[str](), iter(range(count))

    async def work() -> None:
        for _ in left:
            statuses[await one(fuzz, address, int(port))] += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(work())
    async with asyncio.timeout(PATIENCE_S):
        await server.wait_idle()
        await engine.freed()
        [listener] = [each for each in server.listeners if isinstance(each, HttpListener)]
        while listener.connections:  # those that left in the midst of a request end at its timeout
            await asyncio.sleep(0.01)
    await server.abort()
    engine.close()
    return statuses


async def test_random_requests() -> None:
    statuses = await run(seed=1, count=80)
    assert sum(statuses.values()) == 80
    assert {"200", "400", "closed"} <= set(statuses)


@pytest.mark.slow
@pytest.mark.timeout(3000)
async def test_ten_thousand_random_requests() -> None:
    statuses = await run(seed=2, count=10_000)
    assert sum(statuses.values()) == 10_000
    assert {"200", "400", "403", "404", "405", "413", "415", "closed"} <= set(statuses), statuses
