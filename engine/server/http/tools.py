"""The fields of HTTP bodies that concern tools and reasoning, in OpenAI's forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, Tag

from draftline.engine.chat.calls import Tool, ToolChoice, ToolMode, as_tool_choice, as_tools
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.protocol import EngineInfo
from draftline.engine.server.http.body import Body, ListOf
from draftline.engine.server.http.fields import INERT_IN_CALL, INERT_IN_TOOL
from draftline.engine.server.limits import refuse, tool_violations
from draftline.engine.validation import quoted

PATHS = (
    ("chat.tool_choice", "tool_choice"),
    ("chat.parallel_tool_calls", "parallel_tool_calls"),
    ("chat.max_reasoning_tokens", "max_reasoning_tokens"),
)
"""The engine's paths, and those of bodies."""


class FunctionBody(Body):
    """A function that the model may call."""

    inert = INERT_IN_TOOL

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="the JSON Schema of its arguments")
    strict: bool | None = Field(default=None, description="no effect: arguments always match their schema exactly")


class ToolBody(Body):
    """A tool in the form of chats."""

    inert = INERT_IN_TOOL

    type: Literal["function"]
    function: FunctionBody


class FunctionName(Body):
    """The name of a function."""

    name: str


class NamedTool(Body):
    """A choice of one function, in the form of chats."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Body):
    """Some of the tools, and whether an output must call them."""

    mode: Literal["auto", "required"]
    tools: ListOf[ToolBody] = Field(description="by their names; a whole definition must be that of the tool")


class AllowedToolsChoice(Body):
    """A choice of some tools, in the form of chats."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


_CHOICES = {"function": "a function", "allowed_tools": "allowed tools"}
"""The types of choices that are objects, and their tags, which are no fields' names."""


def _of_known_type(choice: Any) -> Any:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(kind, str) and kind not in _CHOICES:
        expected = f"Input should be {' or '.join(map(repr, _CHOICES))}"
        raise InvalidRequestError(FieldViolation("type", f"{expected}, not {quoted(kind)}"))
    return choice


def _tag(choice: Any) -> str:
    if isinstance(choice, dict):
        kind = choice.get("type")
        return _CHOICES[kind] if isinstance(kind, str) else _CHOICES["function"]
    return _CHOICES.get(getattr(choice, "type", ""), "a mode")


Named = TypeVar("Named")
Allowed = TypeVar("Allowed")

Choice = Annotated[
    Annotated[ToolMode, Tag("a mode")] | Annotated[Named, Tag("a function")] | Annotated[Allowed, Tag("allowed tools")],
    Discriminator(_tag),
    BeforeValidator(_of_known_type),
]
"""Whether an output calls tools, and which: a mode, or the forms of an endpoint for one function and for some tools."""


class CalledFunction(Body):
    """The function of a call, and its arguments."""

    inert = INERT_IN_CALL

    name: str
    arguments: str


class CallBody(Body):
    """A call of an earlier answer."""

    inert = INERT_IN_CALL

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class WithTools(Body):
    """The fields of bodies whose model may call tools."""

    parallel_tool_calls: bool | None = Field(default=None, description="several calls in one answer; true if unset")
    max_reasoning_tokens: int | None = Field(
        default=None, ge=1, description="the reasoning ends within this many tokens, its marks included"
    )


def tools_of(functions: Sequence[FunctionBody], info: EngineInfo, path: str) -> tuple[Tool, ...]:
    """The tools of a body; ``path`` is the path of a function, with ``{}`` in the place of its index.

    Raises:
        InvalidRequestError: one of them is wrong, or they are too many or too long.
    """
    try:
        members = {"name", "description", "parameters"}
        known = as_tools([function.model_dump(include=members, exclude_none=True) for function in functions], "tools")
    except InvalidRequestError as error:
        named = [replace(v, field=_named(v.field, path)) for v in error.violations]
        raise InvalidRequestError(*named) from None
    refuse(*tool_violations(known, info, "tools"))
    return known


def _named(field: str, path: str) -> str:
    index, bracket, rest = field.removeprefix("tools[").partition("]")
    return path.format(index) + rest if bracket else field


def tool_paths(count: int, path: str) -> list[tuple[str, str]]:
    """The engine's paths of tools, and those of a body; see `tools_of`."""
    return [*((f"chat.tools[{index}]", path.format(index)) for index in range(count)), ("chat.tools", "tools")]


def choice_of(choice: ToolMode | Body | None, tools: Sequence[Tool]) -> ToolChoice:
    """The choice of a body.

    Raises:
        InvalidRequestError: it allows what is none of ``tools``.
    """
    return as_tool_choice(choice_fields(choice), tools)


def choice_fields(choice: ToolMode | Body | None) -> str | dict[str, Any]:
    """The choice of a body, as OpenAI writes it."""
    return choice.model_dump(exclude_unset=True) if isinstance(choice, Body) else choice or "auto"
