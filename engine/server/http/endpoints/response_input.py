"""The input of ``POST /v1/responses``: items of a conversation, which become the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.server.http.body import Body, ListOf
from draftline.engine.server.http.fields import INERT_IN_CALL, INERT_IN_MESSAGE, STORE, Inert
from draftline.engine.server.http.items import is_object
from draftline.engine.server.http.messages import ChatMessage, TextPart, joined
from draftline.engine.server.http.tools import CallBody, CalledFunction
from draftline.engine.validation import quoted


class CallItem(Body):
    """A call of an earlier answer."""

    inert = INERT_IN_CALL

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = Field(default=None, description="no effect: nothing is stored")
    status: str | None = Field(default=None, description="no effect: of an earlier answer")


class ResultItem(Body):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | ListOf[TextPart]
    name: str | None = Field(default=None, description="the function that was called")
    id: str | None = Field(default=None, description="no effect: nothing is stored")
    status: str | None = Field(default=None, description="no effect: nothing is stored")


class ReasoningText(Body):
    """Text of an earlier answer's reasoning."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Body):
    """The reasoning of an earlier answer."""

    type: Literal["reasoning"]
    content: ListOf[ReasoningText] | None = None
    summary: ListOf[ReasoningText] | None = Field(default=None, description="no effect: the content says all")
    encrypted_content: str | None = Field(default=None, description="no effect: nothing is encrypted")
    id: str | None = Field(default=None, description="no effect: nothing is stored")
    status: str | None = Field(default=None, description="no effect: of an earlier answer")


class InputItem(ChatMessage):
    """A message of the input, or one of an earlier answer."""

    inert: ClassVar[Mapping[str, Inert]] = {**INERT_IN_MESSAGE, "phase": Inert(None, "a label of an earlier answer")}

    type: Literal["message"] | None = None
    id: str | None = Field(default=None, description="no effect: nothing is stored")
    status: str | None = Field(default=None, description="no effect: of an earlier answer")


_KINDS = ("message", "function_call", "function_call_output", "reasoning")


def _of_known_kind(item: Any) -> Any:
    kind = item.get("type") if isinstance(item, dict) else None
    if kind == "item_reference":
        raise InvalidRequestError(FieldViolation("type", f"{kind} is not supported: {STORE}; send the item itself"))
    if isinstance(kind, str) and kind not in _KINDS:
        expected = f"Input should be {', '.join(map(repr, _KINDS[:-1]))} or {_KINDS[-1]!r}"
        raise InvalidRequestError(FieldViolation("type", f"{expected}, not {quoted(kind)}"))
    return item


def _kind(item: Any) -> str:
    return (item.get("type") if isinstance(item, dict) else getattr(item, "type", None)) or "message"


Item = Annotated[
    Annotated[InputItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _kind,
        custom_error_type="item",
        custom_error_message="Input should be a message, function_call, function_call_output or reasoning",
    ),
    BeforeValidator(_of_known_kind),
]
"""An item of the input; without a type, a message."""


Placed = tuple[ChatMessage, str]
"""A message, and its place in the body."""


def conversation(instructions: str | None, given: str | list[Item]) -> list[Placed]:
    """The messages of an input.

    Raises:
        InvalidRequestError: the arguments of an earlier call are no JSON object.
    """
    placed: list[Placed] = []
    if instructions is not None:
        placed.append((ChatMessage(role="system", content=instructions), "instructions"))
    if isinstance(given, str):
        return [*placed, (ChatMessage(role="user", content=given), "input")]
    for index, item in enumerate(given):
        if isinstance(item, CallItem) and not is_object(item.arguments or "{}"):
            raise InvalidRequestError(FieldViolation(f"input[{index}].arguments", "must be a JSON object"))
        _add(placed, item, f"input[{index}]")
    return placed


def _add(placed: list[Placed], item: InputItem | CallItem | ResultItem | ReasoningItem, place: str) -> None:
    """Add an item to the conversation: reasoning, text and calls of one answer are one message."""
    if isinstance(item, ResultItem):
        result = ChatMessage(role="tool", content=joined(item.output), tool_call_id=item.call_id, name=item.name)
        placed.append((result, place))
        return
    if isinstance(item, InputItem) and item.role != "assistant":
        placed.append((item, place))
        return
    last, begun = ChatMessage(role="assistant", content=""), place
    if placed and placed[-1][0].role == "assistant":
        last, begun = placed.pop()
    if isinstance(item, CallItem):
        call = CallBody(id=item.call_id, function=CalledFunction(name=item.name, arguments=item.arguments))
        placed.append((last.model_copy(update={"tool_calls": [*(last.tool_calls or ()), call]}), begun))
    elif isinstance(item, ReasoningItem):
        text = "".join(part.text for part in item.content or ())
        placed.append((last.model_copy(update={"reasoning_content": (last.reasoning_content or "") + text}), begun))
    elif last.content or last.tool_calls:
        placed += [(last, begun), (item, place)]
    else:
        reasoning = {"reasoning_content": last.reasoning_content} if last.reasoning_content else {}
        placed.append((item.model_copy(update=reasoning), place))
