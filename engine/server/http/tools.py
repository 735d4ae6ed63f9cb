"""The fields of HTTP bodies that concern tools and reasoning, in OpenAI's forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from draftline.engine.chat.calls import Tool, ToolChoice, as_tool_choice, as_tools
from draftline.engine.errors import InvalidRequestError
from draftline.engine.protocol import EngineInfo
from draftline.engine.server.http.body import Body
from draftline.engine.server.http.fields import INERT_IN_CALL
from draftline.engine.server.limits import refuse, tool_violations

PATHS = (
    ("chat.tool_choice", "tool_choice"),
    ("chat.max_reasoning_tokens", "max_reasoning_tokens"),
)
"""The engine's paths, and those of bodies."""


class FunctionBody(Body):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="the JSON Schema of its arguments")
    strict: bool | None = Field(default=None, description="no effect: arguments always match their schema exactly")


class ToolBody(Body):
    """A tool in the form of chats."""

    type: Literal["function"]
    function: FunctionBody


class FunctionName(Body):
    """The name of a function."""

    name: str


class ChoiceBody(Body):
    """A choice of one function, in the form of chats."""

    type: Literal["function"]
    function: FunctionName


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


def choice_of(choice: str | ChoiceBody | None) -> ToolChoice:
    """The choice of a chat's body.

    Raises:
        InvalidRequestError: it is unknown.
    """
    return as_tool_choice(choice.model_dump() if isinstance(choice, ChoiceBody) else choice)
