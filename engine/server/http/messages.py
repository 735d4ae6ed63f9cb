"""Chat messages of HTTP bodies, and how the model's template renders them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from draftline.engine.chat.messages import Chat
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.protocol import EngineInfo
from draftline.engine.server.http.body import Body, ListOf
from draftline.engine.server.http.fields import INERT_IN_MESSAGE, INERT_IN_PART, Names
from draftline.engine.server.http.tools import CallBody
from draftline.engine.server.limits import MAX_VARIABLES, chat_violations, length_violations, refuse
from draftline.engine.validation import quoted
from draftline.models.tokenization.rendering import Rendering


class TextPart(Body):
    """A part of a message."""

    inert = INERT_IN_PART

    type: Literal["text", "input_text", "output_text"]
    text: str
    annotations: ListOf[Any] | None = Field(default=None, max_length=0)
    logprobs: ListOf[Any] | None = Field(default=None, description="no effect: of an answer that comes back")


class MessagePart(TextPart):
    """A part of a chat's message. Some clients copy the other fields of an answer's message into its part."""

    role: str | None = Field(default=None, description="no effect: the message's")
    tool_calls: ListOf[CallBody] | None = Field(default=None, description="no effect: of the message's")
    reasoning_content: str | None = Field(default=None, description="the message's, where that has none")


class ChatMessage(Body):
    """A message. The role developer means system. Several parts are joined by line breaks."""

    inert = INERT_IN_MESSAGE

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | ListOf[MessagePart] | None = None
    tool_calls: ListOf[CallBody] | None = Field(default=None, description="of an earlier answer")
    tool_call_id: str | None = Field(default=None, description="the call whose result a tool's message is")
    reasoning_content: str | None = Field(default=None, description="of an earlier answer")
    reasoning: str | None = Field(default=None, description="the same")
    name: str | None = Field(
        default=None, description="of a tool: the function that was called; else the only name that its role has"
    )


RENDERED_PATHS = (("chat.chat_template_kwargs", "chat_template_kwargs"),)
"""The engine's paths of what is in `Rendered`, and those of bodies."""


class Rendered(Body):
    """The fields that say how messages become a prompt. They are vLLM's."""

    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="variables of the chat template")
    add_generation_prompt: bool | None = Field(default=None, description="begin a new message; true if unset")
    continue_final_message: bool | None = Field(default=None, description="continue the last message")


def call_paths(messages: list[ChatMessage]) -> list[tuple[str, str]]:
    """The engine's paths of the arguments of earlier calls, and those of a chat's body, where they are a function's."""
    return [
        (f"chat.messages[{index}].tool_calls[{at}].arguments", f"messages[{index}].tool_calls[{at}].function.arguments")
        for index, message in enumerate(messages)
        for at in range(len(message.tool_calls or ()))
    ]


def chat(
    messages: list[ChatMessage],
    how: Rendered,
    info: EngineInfo,
    field: str,
    places: Sequence[str] | None = None,
    **options: Any,
) -> Chat:
    """The chat of some messages.

    Args:
        messages: the messages.
        how: how they become a prompt.
        info: the engine's.
        field: the place of all messages in the body.
        places: the place of each message, if they are not the items of ``field``.
        options: those of `Chat`.

    Raises:
        InvalidRequestError: they are too many or too long, or the last one cannot be continued.
    """
    placed = list(zip(places or [f"{field}[{index}]" for index in range(len(messages))], messages, strict=True))
    refuse(
        *(
            FieldViolation(f"{place}.content", "Field required")
            for place, message in placed
            if message.content is None and not message.tool_calls
        ),
        *(violation for place, message in placed for violation in _misplaced(message, place)),
        *_misnamed(placed),
        *chat_violations(messages, _texts, info, field),
        *length_violations(_as_json(how), MAX_VARIABLES, "chat_template_kwargs", "characters"),
    )
    if how.continue_final_message:
        if how.add_generation_prompt:
            problem = "cannot come with add_generation_prompt: one continues a message, the other begins one"
            raise InvalidRequestError(FieldViolation("continue_final_message", problem))
        if not messages or messages[-1].role != "assistant":
            raise InvalidRequestError(FieldViolation(field, "must end with a message of the assistant to be continued"))
    rendering = Rendering(
        how.chat_template_kwargs or {},
        add_generation_prompt=how.add_generation_prompt is not False,
        continue_final_message=how.continue_final_message is True,
    )
    try:
        return Chat([_message(message) for message in messages], rendering, **options)
    except InvalidRequestError as error:
        raise Names((*message_paths(place for place, _ in placed), ("chat.messages", field))).error(error) from None


def _as_json(how: Rendered) -> str:
    """The variables of the chat template; empty without any."""
    return json.dumps(how.chat_template_kwargs, ensure_ascii=False) if how.chat_template_kwargs else ""


def message_paths(places: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The engine's paths of messages, and their places in the body."""
    return ((f"chat.messages[{index}]", place) for index, place in enumerate(places))


_OF_ROLE = {
    "tool_calls": "assistant",
    "reasoning_content": "assistant",
    "reasoning": "assistant",
    "tool_call_id": "tool",
}
"""The fields that only messages of one role have."""


def _misplaced(message: ChatMessage, path: str) -> Iterator[FieldViolation]:
    """A violation for each field that a message of its role does not have, or that a part does not share with it."""
    for name, role in _OF_ROLE.items():
        if getattr(message, name) and message.role != role:
            yield FieldViolation(f"{path}.{name}", f"only a message of the role {role} has it, not {message.role}")
    if message.reasoning and message.reasoning_content and message.reasoning != message.reasoning_content:
        yield FieldViolation(f"{path}.reasoning", "is not the message's reasoning_content; set one of them")
    calls = {call.id for call in message.tool_calls or ()}
    for index, part in enumerate(_parts(message)):
        place = f"{path}.content[{index}]"
        if part.role and part.role != message.role:
            yield FieldViolation(f"{place}.role", f"is not the message's, {message.role}")
        if any(call.id not in calls for call in part.tool_calls or ()):
            yield FieldViolation(f"{place}.tool_calls", "are not the message's")
        if part.reasoning_content and message.role != "assistant":
            yield FieldViolation(f"{place}.reasoning_content", f"a message of the role {message.role} has none")


def _misnamed(placed: Iterable[tuple[str, ChatMessage]]) -> Iterator[FieldViolation]:
    """A violation for each speaker's name that would tell the model something: templates show none.

    The only name of a role distinguishes no speakers.
    """
    speakers: dict[str, str] = {}
    for place, message in placed:
        if not message.name or message.role == "tool":
            continue
        if (first := speakers.setdefault(_role(message), message.name)) != message.name:
            problem = (
                f"is not supported beside {quoted(first)}: chat templates have no names; write them into the content"
            )
            yield FieldViolation(f"{place}.name", problem)


def _message(message: ChatMessage) -> dict[str, object]:
    values: dict[str, object] = {"role": _role(message), "content": _text(message)}
    if message.tool_calls:
        values["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    if message.tool_call_id:
        values["tool_call_id"] = message.tool_call_id
    if message.name and message.role == "tool":
        values["name"] = message.name
    if reasoning := _reasoning(message):
        values["reasoning"] = reasoning
    return values


def _role(message: ChatMessage) -> str:
    """The role that templates know."""
    return "system" if message.role == "developer" else message.role


def _texts(message: ChatMessage) -> Iterator[str]:
    """All texts of a message that a template may show."""
    yield from (_text(message), _reasoning(message), message.tool_call_id or "")
    for call in message.tool_calls or ():
        yield from (call.id, call.function.name, call.function.arguments)


def _text(message: ChatMessage) -> str:
    return joined(message.content or "")


def joined(content: str | Sequence[TextPart]) -> str:
    """The text of a message or of a result."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _reasoning(message: ChatMessage) -> str:
    of_parts = "".join(part.reasoning_content or "" for part in _parts(message))
    return message.reasoning_content or message.reasoning or of_parts


def _parts(message: ChatMessage) -> list[MessagePart]:
    return message.content if isinstance(message.content, list) else []
