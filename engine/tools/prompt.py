"""How a chat's tools, calls and results become a prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from draftline.engine.chat.calls import Tool, ToolCall
from draftline.engine.chat.messages import NO_DETAILS, Chat, MessageDetails, answered_functions
from draftline.engine.chat.tool_format import ToolFormat
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.protocol import EngineInfo
from draftline.engine.tools.formats import FORMATS
from draftline.models.tokenization.rendering import Rendering

_INSTRUCTIONS = """You can call these functions, given with the JSON Schemas of their arguments:
{tools}

To call functions, reply with nothing but
{call}"""


def rendered_chat(chat: Chat, info: EngineInfo) -> tuple[tuple[tuple[str, str], ...], Rendering]:
    """The messages of a chat and the template's choices, with everything about tools in one of them.

    A template that shows tools gets them in transformers' form. For any other, a system message explains them, calls
    are written as the model is to write them, and results are the user's messages.

    Raises:
        InvalidRequestError: the arguments of an earlier call are no JSON object, or a tool's parameters are no JSON.
    """
    if not chat.tools and not chat.details:
        return chat.messages, chat.rendering
    tools = tuple(_function(tool, index) for index, tool in enumerate(chat.tools))
    functions = answered_functions(chat.details)
    members = {index: _members(details, index, functions.get(index)) for index, details in chat.details.items()}
    if info.shows_tools:
        return chat.messages, replace(chat.rendering, tools=tools, members=members)
    tool_format = FORMATS.get(info.tool_format)
    if tool_format is None:
        return chat.messages, chat.rendering
    return tuple(_explained(chat, tools, functions, tool_format)), chat.rendering


def _members(details: MessageDetails, message: int, function: str | None) -> Mapping[str, object]:
    """What a template's message has besides role and content; ``function`` is the name of that whose result it is."""
    members: dict[str, object] = {}
    if details.tool_calls:
        members["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": _arguments(call, f"chat.messages[{message}].tool_calls[{at}]"),
                },
            }
            for at, call in enumerate(details.tool_calls)
        ]
    if details.tool_call_id:
        members["tool_call_id"] = details.tool_call_id
    if function is not None:
        members["name"] = function  # which some templates show, as Hermes 2 Pro's
    if details.reasoning:
        members["reasoning_content"] = details.reasoning
    return members


def _function(tool: Tool, index: int) -> dict[str, Any]:
    try:
        return tool.function()
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(FieldViolation(f"chat.tools[{index}].parameters", f"is not JSON: {error}")) from None


def _arguments(call: ToolCall, path: str) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments or "{}")
        json.dumps(arguments, allow_nan=False)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequestError(FieldViolation(f"{path}.arguments", "must be a JSON object, with finite numbers"))
    return arguments


def _explained(
    chat: Chat, tools: tuple[dict[str, Any], ...], functions: Mapping[int, str], how: ToolFormat
) -> Iterator[tuple[str, str]]:
    messages = list(enumerate(chat.messages))
    if chat.tools and chat.tool_choice.mode != "none":
        schemas = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        example = _written((ToolCall("", "NAME", "{…}"),), how)
        explanation = _INSTRUCTIONS.format(tools=schemas, call=example)
        if messages and messages[0][1][0] == "system":
            _, (_, content) = messages.pop(0)
            explanation = f"{content}\n\n{explanation}"
        yield "system", explanation
    for index, (role, content) in messages:
        details = chat.details.get(index, NO_DETAILS)
        if role == "tool":
            yield "user", f"Result of {functions[index]}: {content}" if index in functions else f"Result: {content}"
        elif details.tool_calls:
            yield role, content + ("\n" if content else "") + _written(details.tool_calls, how)
        else:
            yield role, content


def _written(calls: tuple[ToolCall, ...], how: ToolFormat) -> str:
    """Calls as the model is to write them."""
    written = how.separator.join(how.begin(call.name) + call.arguments + how.end for call in calls)
    return how.open + written + how.close
