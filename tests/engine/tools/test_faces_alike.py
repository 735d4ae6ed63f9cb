"""Chats with tools and reasoning over HTTP, streamed and whole, over gRPC and in Python: every face tells the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from http_client import http_client
from tiny import Client
from tool_cases import FIRST_SPECIAL, NESTED, ToolCase, check_output, streamed_calls, tool_core

from draftline import AsyncClient
from draftline.engine.chat.messages import Chat
from draftline.engine.params import SamplingParams
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server
from draftline.engine.threaded_engine import ThreadedEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = [{"role": "user", "content": "x"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in (("get", NESTED), ("now", {"type": "object", "properties": {}}))
]
NAMED = {"type": "function", "function": {"name": "get"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
BIAS = {0: -4.0, ord(" "): -3.0, ord("\n"): -3.0, FIRST_SPECIAL: 6.0}  # the token that begins a call
LIMIT = 80

Told = list[tuple[str, str, list[tuple[str, str]], str]]
"""Text, reasoning, calls and finish reason of each output."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Server]:
    core = tool_core("mistral_args", reasoning=True, num_blocks=400)
    engine = ThreadedEngine(core, max_waiting=64, max_waiting_tokens=1 << 16, ageing_s=5.0)
    server = Server(ServerConfig(port=0, http_port=0))
    await server.start()
    await server.serve(engine)
    yield server
    await server.abort()
    engine.close()


def in_python(choice: Any, parallel: bool) -> Told:
    chat = Chat(MESSAGES, tools=TOOLS, tool_choice=choice, parallel_tool_calls=parallel, max_reasoning_tokens=24)
    sampling = SamplingParams(seed=3, n=2, max_tokens=LIMIT, logit_bias=BIAS)
    client = Client(tool_core("mistral_args", reasoning=True, num_blocks=400))
    client.submit("0", chat, sampling)
    told: Told = []
    for output in client.run()["0"].outputs:
        check_output(output, ToolCase(chat, sampling, None), streamed_calls(client, "0", output.index))
        assert output.finish_reason is not None
        calls = [(call.name, call.arguments) for call in output.tool_calls]
        told.append((output.text, output.reasoning or "", calls, output.finish_reason))
    return told


async def over_grpc(server: Server, choice: Any, parallel: bool) -> Told:
    sampling = SamplingParams(seed=3, n=2, max_tokens=LIMIT, logit_bias=BIAS)
    async with AsyncClient(server.address) as client:
        [answer] = await client.chat(
            MESSAGES,
            sampling,
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=parallel,
            max_reasoning_tokens=24,
            use_tqdm=False,
        )
    return [
        (each.text, each.reasoning or "", [(call.name, call.arguments) for call in each.tool_calls], each.finish_reason)
        for each in answer.outputs
    ]


async def over_http(http: httpx2.AsyncClient, choice: Any, parallel: bool, *, stream: bool) -> Told:
    body = {
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "max_reasoning_tokens": 24,
        "seed": 3,
        "n": 2,
        "max_completion_tokens": LIMIT,
        "logit_bias": {str(token): bias for token, bias in BIAS.items()},
        "stream": stream,
    }
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    if not stream:
        return [
            (
                choice["message"]["content"] or "",
                choice["message"].get("reasoning_content", ""),
                [
                    (call["function"]["name"], call["function"]["arguments"])
                    for call in choice["message"].get("tool_calls", ())
                ],
                choice["finish_reason"],
            )
            for choice in response.json()["choices"]
        ]
    told: list[list[Any]] = [["", "", [], ""] for _ in range(2)]
    for line in response.text.splitlines():
        if not line.startswith("data: {"):
            continue
        for each in json.loads(line.removeprefix("data: "))["choices"]:
            output, delta = told[each["index"]], each["delta"]
            output[0] += delta.get("content", "")
            output[1] += delta.get("reasoning_content", "")
            for part in delta.get("tool_calls", ()):
                if "id" in part:
                    assert part["index"] == len(output[2])
                    output[2].append([part["function"]["name"], ""])
                output[2][part["index"]][1] += part["function"]["arguments"]
            output[3] = each["finish_reason"] or output[3]
    return [(text, reasoning, [(a, b) for a, b in calls], reason) for text, reasoning, calls, reason in told]


@pytest.mark.parametrize(
    ("choice", "parallel"),
    [
        ("required", True),
        ("auto", False),
        (ALLOWED, True),
        *(
            pytest.param(choice, parallel, marks=pytest.mark.slow)
            for choice in ("auto", "none", NAMED, ALLOWED, "required")
            for parallel in (True, False)
        ),
    ],
)
async def test_every_face_tells_the_same(server: Server, choice: Any, parallel: bool) -> None:
    want = in_python(choice, parallel)
    assert await over_grpc(server, choice, parallel) == want
    async with http_client(server) as http:
        whole = await over_http(http, choice, parallel, stream=False)
        streamed = await over_http(http, choice, parallel, stream=True)
    reasons = {"eos": "tool_calls" if choice != "none" else "stop", "length": "length"}
    assert [each[:3] for each in whole] == [each[:3] for each in want]
    for got, expected, parts in zip(whole, want, streamed, strict=True):
        assert got[3] == (reasons[expected[3]] if expected[2] or expected[3] == "length" else "stop")
        assert parts[:2] == got[:2]
        assert parts[2][: len(got[2])] == got[2]  # a call that was cut off is streamed, and not listed
        assert parts[3] == got[3]
    assert any(each[2] for each in want) == (choice != "none")
