"""What client libraries send by default, and send back of answers: accepted if it says nothing new, else named."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from fake_engine import FakeEngine

from draftline.engine.protocol import Chat

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ASKED = {"role": "user", "content": "a"}


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
    ],
)
async def test_an_error_counts_the_items_of_an_input(http: httpx2.AsyncClient, given: list[Any], param: str) -> None:
    """Instructions and merged items do not shift it."""
    response = await http.post("/v1/responses", json={"instructions": "i", "input": given})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
