"""``Chat``: the messages of a chat, read and checked as callers write them.

The chat template renders them elsewhere (`engine/request/tokenization.py`, after `engine/tools/prompt.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftline.engine.chat.calls import Tool, ToolCall, ToolChoice, as_tool_calls, as_tool_choice, as_tools
from draftline.engine.errors import FieldViolation, InvalidRequestError, check_unicode, kind_of
from draftline.models.tokenization.rendering import AS_USUAL, Rendering

_A_MESSAGE = "{'role': …, 'content': …}"

Message = Mapping[str, Any]
"""A chat message: ``{"role": ..., "content": ...}``.

An assistant's may have "tool_calls" in OpenAI's form, and "reasoning" (or "reasoning_content"). A tool's has the
"tool_call_id" of the call whose result it is, and may repeat the "name" of the function.
"""


@dataclass(frozen=True, slots=True)
class MessageDetails:
    """What a message may have besides its role and content.

    Attributes:
        tool_calls: the calls that the assistant made.
        tool_call_id: the call whose result a tool's message is.
        reasoning: the assistant's reasoning before the content.
    """

    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True, init=False)
class Chat:
    """Chat messages as (role, content) pairs. The model's chat template renders them, as ``rendering`` says.

    Attributes:
        messages: role and content of each.
        rendering: the choices of the chat template.
        details: what some messages have besides, by index.
        tools: the functions that the model may call.
        tool_choice: whether it calls them, and which.
        parallel_tool_calls: whether an output may make several calls; None, the default, allows them.
        max_reasoning_tokens: the reasoning ends within this many tokens, its marks included; None without a limit.
    """

    messages: tuple[tuple[str, str], ...]
    rendering: Rendering
    details: Mapping[int, MessageDetails]
    tools: tuple[Tool, ...]
    tool_choice: ToolChoice
    parallel_tool_calls: bool | None
    max_reasoning_tokens: int | None

    def __init__(
        self,
        messages: Iterable[Message | tuple[str, str]],
        rendering: Rendering = AS_USUAL,
        *,
        tools: Iterable[Tool | Mapping[str, Any]] | None = None,
        tool_choice: ToolChoice | str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        max_reasoning_tokens: int | None = None,
    ) -> None:
        """Make a chat of messages: ``{"role": ..., "content": ...}``, or (role, content) pairs.

        Args:
            messages: the messages; see `Message`.
            rendering: the choices of the chat template.
            tools: the functions that the model may call: `Tool`, or mappings in OpenAI's form.
            tool_choice: "auto", "none", "required", OpenAI's mapping of a function or of allowed tools, or a
                `ToolChoice`.
            parallel_tool_calls: whether an output may make several calls; None allows them. It needs tools.
            max_reasoning_tokens: the reasoning ends within this many tokens, its marks included.

        Raises:
            InvalidRequestError: something else is among them. The violation's field is its path, as in the proto.
        """
        if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
            problem = f"must be a list of {_A_MESSAGE} messages, not {kind_of(messages)}"
            raise InvalidRequestError(FieldViolation("chat.messages", problem))
        given = list(messages)
        pairs = tuple(_message(f"chat.messages[{index}]", message) for index, message in enumerate(given))
        details = {
            index: found
            for index, message in enumerate(given)
            if isinstance(message, Mapping) and (found := _details(f"chat.messages[{index}]", message)) != NO_DETAILS
        }
        _check_names(given, details)
        if max_reasoning_tokens is not None and (type(max_reasoning_tokens) is not int or max_reasoning_tokens < 1):
            raise InvalidRequestError(
                FieldViolation("chat.max_reasoning_tokens", "must be a number of tokens, 1 or more")
            )
        object.__setattr__(self, "messages", pairs)
        object.__setattr__(self, "rendering", rendering)
        object.__setattr__(self, "details", details)
        object.__setattr__(self, "tools", as_tools(tools, "chat.tools"))
        object.__setattr__(self, "tool_choice", as_tool_choice(tool_choice, self.tools, "chat.tool_choice"))
        object.__setattr__(self, "parallel_tool_calls", parallel_tool_calls)
        object.__setattr__(self, "max_reasoning_tokens", max_reasoning_tokens)

    def with_options(self, **options: Any) -> Chat:
        """The same messages with other tools or limits: the keywords of the constructor."""
        kept = {
            "tools": self.tools,
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "max_reasoning_tokens": self.max_reasoning_tokens,
        }
        chat = Chat((), self.rendering, **{**kept, **options})
        object.__setattr__(chat, "messages", self.messages)
        object.__setattr__(chat, "details", self.details)
        return chat


NO_DETAILS = MessageDetails()
"""Of a message that has its role and content alone."""


def _message(path: str, message: object) -> tuple[str, str]:
    if isinstance(message, Mapping):
        role, content = message.get("role"), message.get("content")
        if content is None and message.get("tool_calls"):
            content = ""
        more = set(message) - {"role", "content", *_DETAILS.get(role, ())}
        for owner, names in _DETAILS.items():
            if misplaced := sorted(more.intersection(names)):
                problem = f"only a message of the role {owner} has it, not {role}"
                raise InvalidRequestError(FieldViolation(f"{path}.{misplaced[0]}", problem))
        if more or "role" not in message or ("content" not in message and content is None):
            problem = f"needs exactly 'role' and 'content', has {sorted(map(str, message))}"
            raise InvalidRequestError(FieldViolation(path, problem))
    elif isinstance(message, tuple) and len(message) == 2:
        role, content = message
    else:
        raise InvalidRequestError(FieldViolation(path, f"must be {_A_MESSAGE}, not {kind_of(message)}"))
    if isinstance(content, list):
        content = "\n".join(_part(f"{path}.content[{index}]", part) for index, part in enumerate(content))
    for name, part in (("role", role), ("content", content)):
        if not isinstance(part, str):
            raise InvalidRequestError(FieldViolation(f"{path}.{name}", f"must be text, not {kind_of(part)}"))
        check_unicode(f"{path}.{name}", part)
    return str(role), str(content)


def _part(path: str, part: object) -> str:
    """The text of a part of a message's content."""
    match part:
        case {"type": "text", "text": str(text), **others} if not others:
            return text
    raise InvalidRequestError(FieldViolation(path, "must be {'type': 'text', 'text': …}: the model reads text"))


_DETAILS: dict[Any, tuple[str, ...]] = {
    "assistant": ("tool_calls", "reasoning", "reasoning_content"),
    "tool": ("tool_call_id", "name"),
}
"""The further members of messages, by role."""


def _details(path: str, message: Mapping[str, Any]) -> MessageDetails:
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    if reasoning != (message.get("reasoning_content") or reasoning):
        problem = "is not the message's reasoning_content; set one of them"
        raise InvalidRequestError(FieldViolation(f"{path}.reasoning", problem))
    call_id = message.get("tool_call_id") or ""
    for name, text in (("reasoning", reasoning), ("tool_call_id", call_id)):
        if not isinstance(text, str):
            raise InvalidRequestError(FieldViolation(f"{path}.{name}", f"must be text, not {kind_of(text)}"))
        check_unicode(f"{path}.{name}", text)
    return MessageDetails(as_tool_calls(message.get("tool_calls") or (), f"{path}.tool_calls"), call_id, reasoning)


def answered_functions(details: Mapping[int, MessageDetails]) -> dict[int, str]:
    """By message, the name of the function whose result it is: that of the last call before it with its id.

    Ids may repeat: some clients count the calls of each answer anew.
    """
    called: dict[str, str] = {}
    functions: dict[int, str] = {}
    for index, found in details.items():
        called |= {call.id: call.name for call in found.tool_calls}
        if found.tool_call_id in called:
            functions[index] = called[found.tool_call_id]
    return functions


def _check_names(messages: Sequence[object], details: Mapping[int, MessageDetails]) -> None:
    """Raise InvalidRequestError where a tool's message names another function than that of the call before it."""
    functions = answered_functions(details)
    for index, message in enumerate(messages):
        name = message.get("name") if isinstance(message, Mapping) else None
        if name and functions.get(index) != name:
            raise InvalidRequestError(
                FieldViolation(f"chat.messages[{index}].name", "is not the function of the call that it answers")
            )
