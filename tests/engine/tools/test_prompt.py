"""What a chat template gets of tools and earlier calls, and what is told where that is malformed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_engine import fake_info
from fake_tokenizer import ByteTokenizer

from draftline.engine.chat.calls import Tool
from draftline.engine.chat.messages import Chat
from draftline.engine.errors import InvalidRequestError
from draftline.engine.request.tokenization import tokenize
from draftline.engine.tools.prompt import rendered_chat
from draftline.models.tokenization.rendering import Rendering, VariableError


def called(arguments: str) -> Chat:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    return Chat([{"role": "assistant", "content": "", "tool_calls": [call]}])


@pytest.mark.parametrize("shows_tools", [True, False])
def test_parameters_that_are_no_json_are_named(shows_tools: bool) -> None:
    tools = [Tool("ok"), Tool("bad", parameters='{"type": "object", }')]
    with pytest.raises(InvalidRequestError, match=r"^chat\.tools\[1\]\.parameters: is not JSON: "):
        rendered_chat(Chat([("user", "a")], tools=tools), replace(fake_info(), shows_tools=shows_tools))


@pytest.mark.parametrize(("arguments", "expected"), [('{"a": 1}', {"a": 1}), ("", {})])
def test_the_arguments_of_an_earlier_call_are_an_object(arguments: str, expected: dict[str, Any]) -> None:
    _, rendering = rendered_chat(called(arguments), replace(fake_info(), shows_tools=True))
    [call] = rendering.members[0]["tool_calls"]  # type: ignore[misc]
    assert call["function"]["arguments"] == expected


@pytest.mark.parametrize("shows_tools", [True, False])
@pytest.mark.parametrize("arguments", ["{", "[]", '{"a": NaN}', '{"a": 1e999}'])
def test_arguments_that_are_no_object_of_json_are_named(arguments: str, shows_tools: bool) -> None:
    info = replace(fake_info(), shows_tools=shows_tools, tool_format="json")
    with pytest.raises(InvalidRequestError, match=r"^chat\.messages\[0\]\.tool_calls\[0\]\.arguments: must be"):
        rendered_chat(called(arguments), info)


def test_a_template_gets_the_name_of_the_function_whose_result_it_shows() -> None:
    """Hermes 2 Pro's template refuses results without it."""
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c", "content": "1"}
    chat = Chat([{"role": "assistant", "content": None, "tool_calls": [call]}, result])
    _, rendering = rendered_chat(chat, replace(fake_info(), shows_tools=True))
    assert rendering.members[1] == {"tool_call_id": "c", "name": "f"}


def test_a_result_is_of_the_last_call_before_it_with_its_id() -> None:
    """Some clients count the calls of each answer anew."""
    messages: list[dict[str, Any]] = []
    for name in ("f", "g"):
        call = {"id": "call_0", "function": {"name": name, "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "call_0", "content": "1"})
    chat = Chat(messages)
    _, rendering = rendered_chat(chat, replace(fake_info(), shows_tools=True))
    assert [rendering.members[index]["name"] for index in (1, 3)] == ["f", "g"]
    explained, _ = rendered_chat(chat, replace(fake_info(), shows_tools=False, tool_format="json"))
    assert [explained[index] for index in (1, 3)] == [("user", "Result of f: 1"), ("user", "Result of g: 1")]


@pytest.mark.parametrize(
    "result", [{"name": "g", "tool_call_id": "c"}, {"name": "f", "tool_call_id": "d"}, {"name": "f"}]
)
def test_the_name_of_another_function_is_refused(result: dict[str, str]) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "1", **result}]
    with pytest.raises(InvalidRequestError, match=r"^chat\.messages\[1\]\.name: is not the function of the call"):
        Chat(messages)


def test_a_variable_that_cannot_be_set_is_no_matter_of_the_messages() -> None:
    class Refusing(ByteTokenizer):
        def encode_chat(self, *_: object) -> list[int]:  # type: ignore[override]
            raise VariableError("the template's variable 'tools' cannot be set")

    chat = Chat([("user", "a")], Rendering({"tools": 1}))
    with pytest.raises(InvalidRequestError, match=r"^chat\.chat_template_kwargs: the template's"):
        tokenize(chat, Refusing(), fake_info())  # type: ignore[arg-type]
