"""What client libraries send by default, and send back of answers: accepted if it says nothing new, else named."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from fake_engine import FakeEngine

from draftline.engine.chat.messages import Chat

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ASKED = {"role": "user", "content": "a"}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_CALLED = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
_CACHED = {"type": "ephemeral"}
_RESULT = {"role": "tool", "tool_call_id": "c", "content": "1"}


def _part(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": "b", **fields}]}


def _named(role: str, name: str) -> dict[str, Any]:
    return {"role": role, "content": "a", "name": name}


@pytest.mark.parametrize(
    "messages",
    [
        [_named("system", "Bo"), _named("user", "Al"), _named("assistant", "Bo"), _named("user", "Al")],  # AutoGen
        [_ASKED, _part(role="assistant", refusal=None), _ASKED],  # Agents for JavaScript
        [_ASKED, _part(role="assistant", tool_calls=[_CALL]) | {"tool_calls": [_CALL]}, _ASKED],
        [_CALLED | {"provider_specific_fields": {"refusal": None, "reasoning_content": "r"}}, _ASKED],  # LiteLLM
        [_part(prompt_cache_breakpoint={"mode": "explicit"}) | {"role": "user"}],  # LangChain
        [_part(cache_control=_CACHED) | {"role": "user"}, _CALLED | {"cache_control": _CACHED}],  # LiteLLM
    ],
)
async def test_a_chat_that_says_nothing_new(http: httpx2.AsyncClient, messages: list[dict[str, Any]]) -> None:
    response = await http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("messages", "param", "part"),
    [
        ([_ASKED, _CALLED, _RESULT | {"name": "g"}], "messages[2].name", "is not the function of the call"),
        ([_RESULT | {"name": "f"}, _CALLED], "messages[0].name", "is not the function of the call"),
        ([_named("user", "Al"), _ASKED, _named("user", "Bo")], "messages[2].name", "beside 'Al': chat templates"),
        ([_named("system", "Al"), _named("developer", "Bo"), _ASKED], "messages[1].name", "beside 'Al'"),
        ([_ASKED, _part(role="user")], "messages[1].content[0].role", "is not the message's, assistant"),
        ([_ASKED, _part(tool_calls=[_CALL])], "messages[1].content[0].tool_calls", "are not the message's"),
        ([_part(reasoning_content="r") | {"role": "user"}], "messages[0].content[0].reasoning_content", "role user"),
    ],
)
async def test_what_the_model_would_not_see_is_refused(
    http: httpx2.AsyncClient, messages: list[dict[str, Any]], param: str, part: str
) -> None:
    response = await http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], part in error["message"]) == (param, True), error


async def test_reasoning_needs_no_encryption_to_come_back(http: httpx2.AsyncClient) -> None:
    """LiteLLM and the AI SDK ask for it."""
    said = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}
    body = {"input": [said, _ASKED], "include": ["reasoning.encrypted_content"], "store": False}
    response = await http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text


async def test_the_reasoning_of_a_part_is_the_messages(
    http: httpx2.AsyncClient, shared_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await _reasoning(http, shared_engine, monkeypatch, messages=[_part(reasoning_content="r"), _ASKED]) == "r"


async def test_the_reasoning_of_an_input_message_is_kept(
    http: httpx2.AsyncClient, shared_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"role": "assistant", "content": "b", "reasoning_content": "r"}
    assert await _reasoning(http, shared_engine, monkeypatch, input=[said, _ASKED]) == "r"


async def _reasoning(http: httpx2.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, **body: Any) -> str:
    """The reasoning of the first message that the engine gets."""
    chats: list[Any] = []
    submit = engine.submit

    def noted(request_id: str, request: Any, sink: Any) -> Any:
        chats.append(request.prompt)
        return submit(request_id, request, sink)

    monkeypatch.setattr(engine, "submit", noted)
    path = "/v1/responses" if "input" in body else "/v1/chat/completions"
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    [chat] = chats
    assert isinstance(chat, Chat)
    return chat.details[0].reasoning


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([_ASKED | {"tool_call_id": "x"}], "input[0].tool_call_id"),
        ([{"role": "user"}], "input[0].content"),
        (
            [
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "1"},
                {"role": "user"},
            ],
            "input[3].content",
        ),
        (
            [
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "1", "name": "g"},
            ],
            "input[1].name",
        ),
    ],
)
async def test_an_error_counts_the_items_of_an_input(http: httpx2.AsyncClient, given: list[Any], param: str) -> None:
    """Instructions and merged items do not shift it."""
    response = await http.post("/v1/responses", json={"instructions": "i", "input": given})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a" * 4096}),
        ("/v1/completions", {"prompt": [1] * 4096}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 4090}]}),
        ("/v1/responses", {"input": "a" * 9000}),
    ],
)
async def test_a_prompt_that_is_too_long_is_known_by_its_code(
    http: httpx2.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    """LangChain shortens the prompt for this code. LiteLLM knows no code, but these words, and tries another model."""
    response = await http.post(path, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded"), error
    assert "this model's maximum context length is" in error["message"]
