"""Chat messages of HTTP bodies, and how the model's template renders them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.protocol import Chat, EngineInfo
from draftline.engine.server.http.body import Body
from draftline.engine.server.http.fields import INERT_IN_MESSAGE, INERT_IN_PART, Names
from draftline.engine.server.http.tools import CallBody
from draftline.engine.server.limits import chat_violations, refuse
from draftline.models.tokenization.rendering import Rendering


class TextPart(Body):
    """A part of a message."""

    inert = INERT_IN_PART

    type: Literal["text", "input_text", "output_text"]
    text: str
    annotations: list[Any] | None = Field(default=None, max_length=0)
    logprobs: list[Any] | None = Field(default=None, description="no effect: of an answer that comes back")


class ChatMessage(Body):
    """A message. The role developer means system. Several parts are joined by line breaks."""

    inert = INERT_IN_MESSAGE

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[CallBody] | None = Field(default=None, description="of an earlier answer")
    tool_call_id: str | None = Field(default=None, description="the call whose result a tool's message is")
    reasoning_content: str | None = Field(default=None, description="of an earlier answer")
    reasoning: str | None = Field(default=None, description="the same")


class Rendered(Body):
    """The fields that say how messages become a prompt. They are vLLM's."""

    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="variables of the chat template")
    add_generation_prompt: bool | None = Field(default=None, description="begin a new message; true if unset")
    continue_final_message: bool | None = Field(default=None, description="continue the last message")


def chat(messages: list[ChatMessage], how: Rendered, info: EngineInfo, field: str, **options: Any) -> Chat:
    """The chat of some messages; ``field`` is their place in the body, ``options`` are those of `Chat`.

    Raises:
        InvalidRequestError: they are too many or too long, or the last one cannot be continued.
    """
    missing = [
        FieldViolation(f"{field}[{index}].content", "Field required")
        for index, message in enumerate(messages)
        if message.content is None and not message.tool_calls
    ]
    pairs = [_Pair(_role(message), _text(message)) for message in messages]
    refuse(*missing, *chat_violations(pairs, info, field))
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
    given = [_message(pair, message) for pair, message in zip(pairs, messages, strict=True)]
    try:
        return Chat(given, rendering, **options)
    except InvalidRequestError as error:
        raise Names((("chat.messages", field),)).error(error) from None


def _message(pair: _Pair, message: ChatMessage) -> dict[str, object]:
    values: dict[str, object] = {"role": pair.role, "content": pair.content}
    if message.tool_calls:
        values["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    if message.tool_call_id and message.role == "tool":
        values["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning_content or message.reasoning
    if reasoning and message.role == "assistant":
        values["reasoning"] = reasoning
    return values


class _Pair:
    """A message in the form whose length is checked."""

    def __init__(self, role: str, content: str) -> None:
        self.role = role
        self.content = content


def _role(message: ChatMessage) -> str:
    """The role that templates know."""
    return "system" if message.role == "developer" else message.role


def _text(message: ChatMessage) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "\n".join(part.text for part in message.content)
