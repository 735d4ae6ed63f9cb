"""Tools that a model may call, and its calls. The forms are OpenAI's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from draftline.engine.errors import FieldViolation, InvalidRequestError

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The names of tools."""

NO_PARAMETERS = '{"type": "object", "properties": {}, "additionalProperties": false}'

ToolMode = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: letters, digits, "_" and "-", at most 64.
        description: what it does, for the model.
        parameters: the JSON Schema of its arguments, an object, as JSON text.
    """

    name: str
    description: str = ""
    parameters: str = NO_PARAMETERS

    def function(self) -> dict[str, Any]:
        """The tool in OpenAI's form, which chat templates show."""
        function = {"name": self.name, "description": self.description, "parameters": json.loads(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether an output calls tools, and which.

    Attributes:
        mode: "auto": text, calls, or both. "none": no calls. "required": calls and no text.
        names: the tools that may be called; empty for all of them.
        single: whether an output makes one call at most, as where OpenAI's choice names a function.
    """

    mode: ToolMode = "auto"
    names: tuple[str, ...] = ()
    single: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an output made.

    Attributes:
        id: unique among the calls of all outputs: nine letters and digits, as some chat templates ask for.
        name: the tool.
        arguments: a JSON object as text, which matches the tool's schema.
    """

    id: str
    name: str
    arguments: str

    def function(self) -> dict[str, Any]:
        """The call in OpenAI's form."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of a call.

    Attributes:
        index: of the call in its output.
        id: the call's id in its first part; empty in the others.
        name: the tool in the call's first part; empty in the others.
        arguments: more of the arguments' text.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


def as_tools(tools: object, path: str) -> tuple[Tool, ...]:
    """Convert tools, each a `Tool` or a mapping in OpenAI's form.

    Raises:
        InvalidRequestError: one of them is something else, or two have one name.
    """
    if tools is None:
        return ()
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise InvalidRequestError(FieldViolation(path, "must be a list of tools"))
    known = tuple(_tool(tool, f"{path}[{index}]") for index, tool in enumerate(tools))
    names: set[str] = set()
    for index, tool in enumerate(known):
        if not NAME.fullmatch(tool.name):
            problem = f"{tool.name[:64]!r} is no name: 1 to 64 letters, digits, '_' and '-'"
            raise InvalidRequestError(FieldViolation(f"{path}[{index}].name", problem))
        if tool.name in names:
            raise InvalidRequestError(FieldViolation(f"{path}[{index}].name", f"{tool.name!r} is there twice"))
        names.add(tool.name)
    return known


def as_tool_choice(choice: object, tools: Sequence[Tool], path: str = "tool_choice") -> ToolChoice:
    """Convert a choice: a `ToolChoice`, "auto", "none", "required", or OpenAI's mapping of functions.

    Raises:
        InvalidRequestError: it is something else, or allows what is none of ``tools``.
    """
    match choice:
        case None:
            return ToolChoice()
        case ToolChoice(mode="none", names=(_, *_)):
            raise InvalidRequestError(
                FieldViolation(f"{path}.names", 'names tools, but with "none" none may be called')
            )
        case ToolChoice():
            return choice
        case "auto" | "none" | "required":
            return ToolChoice(choice)
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return ToolChoice("required", (name,), single=True)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*allowed]}}:
            return ToolChoice(mode, _allowed(allowed, tools, f"{path}.allowed_tools.tools"))
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [*allowed]}:
            return ToolChoice(mode, _allowed(allowed, tools, f"{path}.tools"))
    problem = (
        'must be "auto", "none", "required", {"type": "function", "function": {"name": …}} or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": […]}}'
    )
    raise InvalidRequestError(FieldViolation(path, problem))


def as_tool_calls(calls: object, path: str) -> tuple[ToolCall, ...]:
    """Convert the calls of an earlier message, each a `ToolCall` or a mapping in OpenAI's form.

    Raises:
        InvalidRequestError: one of them is something else.
    """
    if not isinstance(calls, list | tuple):
        raise InvalidRequestError(FieldViolation(path, "must be a list of calls"))
    return tuple(_call(call, f"{path}[{index}]") for index, call in enumerate(calls))


def _tool(tool: object, path: str) -> Tool:
    function: Mapping[Any, Any]
    match tool:
        case Tool():
            return Tool(tool.name, tool.description, tool.parameters or NO_PARAMETERS)
        case {"type": "function", "function": Mapping() as inside}:
            path += ".function"
            function = inside
        case {"name": str(), **members}:
            function = {**members, "name": tool["name"]}  # type: ignore[index]
        case _:
            raise InvalidRequestError(FieldViolation(path, 'must be a Tool or {"type": "function", "function": {…}}'))
    name, description = function.get("name"), function.get("description")
    parameters = function.get("parameters")
    if not isinstance(name, str):
        raise InvalidRequestError(FieldViolation(f"{path}.name", "must be text"))
    if description is not None and not isinstance(description, str):
        raise InvalidRequestError(FieldViolation(f"{path}.description", "must be text"))
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRequestError(FieldViolation(f"{path}.parameters", "must be a JSON Schema"))
    text = json.dumps(parameters, ensure_ascii=False) if parameters else NO_PARAMETERS
    return Tool(name, description or "", text)


def _allowed(entries: Sequence[object], tools: Sequence[Tool], path: str) -> tuple[str, ...]:
    """The names of the allowed tools. An entry may have the whole definition of its tool: then it is the same."""
    if not entries:
        raise InvalidRequestError(FieldViolation(path, 'is empty: use "none" for no calls'))
    known = {tool.name: tool for tool in tools}
    names: dict[str, None] = {}
    for index, entry in enumerate(entries):
        place = f"{path}[{index}]"
        match entry:
            case {"type": "function", "function": Mapping() as function}:
                allowed, place = _tool(entry, place), f"{place}.function"
            case {"type": "function", **function}:
                allowed = _tool(function, place)
            case _:
                raise InvalidRequestError(FieldViolation(place, 'must be a tool of the type "function"'))
        if allowed.name not in known:
            raise InvalidRequestError(FieldViolation(f"{place}.name", f"there is no tool {allowed.name!r}"))
        for member in ("description", "parameters"):
            if function.get(member) and getattr(allowed, member) != getattr(known[allowed.name], member):
                problem = f"differs from that of the tool {allowed.name!r}"
                raise InvalidRequestError(FieldViolation(f"{place}.{member}", problem))
        names[allowed.name] = None
    return tuple(names)


def _call(call: object, path: str) -> ToolCall:
    match call:
        case ToolCall():
            return call
        case {"function": {"name": str(name), "arguments": str() | Mapping() as arguments}}:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            call_id = call.get("id") if isinstance(call, Mapping) else None
            return ToolCall(call_id if isinstance(call_id, str) else "", name, text or "{}")
    problem = 'must be {"id": …, "type": "function", "function": {"name": …, "arguments": …}}'
    raise InvalidRequestError(FieldViolation(path, problem))
