"""From a chat's tools and reasoning to one constraint, and to how its outputs are read.

The constraint is a structural tag like a client's own: it compiles, is cached and enforced as any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from draftline.engine.chat.calls import Tool
from draftline.engine.chat.messages import Chat
from draftline.engine.chat.plan import ChatPlan, Reading
from draftline.engine.chat.tool_format import ToolFormat
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.params import CONSTRAINT_KINDS, Constraint, Reasoning
from draftline.engine.protocol import EngineInfo, GenerateRequest
from draftline.engine.tools.formats import FORMATS
from draftline.engine.tools.python_call import PLACE, NoArgumentsError, python_arguments
from draftline.structured.members import RepeatedMemberError, unique_members

_Format = dict[str, Any]


def check_chat(chat: Chat, info: EngineInfo) -> None:
    """Check a chat's options against its tools and the model.

    Args:
        chat: the chat.
        info: of the engine.

    Raises:
        InvalidRequestError: an option needs tools that the chat has not, or the model does not reason.
    """
    choice = chat.tool_choice
    known = {tool.name for tool in chat.tools}
    for name in choice.names:
        if name not in known:
            raise InvalidRequestError(FieldViolation("chat.tool_choice", f"there is no tool {name!r}"))
    if choice.mode == "required" and not chat.tools:
        raise InvalidRequestError(FieldViolation("chat.tool_choice", "is required, but there are no tools"))
    if chat.parallel_tool_calls is not None and not chat.tools:
        raise InvalidRequestError(FieldViolation("chat.parallel_tool_calls", "is set, but there are no tools"))
    if chat.max_reasoning_tokens is not None and info.reasoning is None:
        raise InvalidRequestError(FieldViolation("chat.max_reasoning_tokens", f"{info.model} does not reason"))


def plan_chat(request: GenerateRequest, info: EngineInfo, prompt_end: Callable[[], str]) -> ChatPlan:
    """Plan a request.

    Args:
        request: the request. Without a chat, its constraint stays as it is.
        info: of the engine.
        prompt_end: gives the end of the prompt's text, with special tokens.

    Raises:
        InvalidRequestError: the chat asks for what the model or the constraint does not allow.
    """
    chat, constraint = request.prompt, request.constraint
    if not isinstance(chat, Chat):
        return ChatPlan(constraint, None)
    check_chat(chat, info)
    reasoning, is_open = _reasoning(chat, constraint, info, prompt_end)
    tools = _callable(chat)
    if not chat.tools or (constraint is not None and not tools):
        # Without a limit there is nothing to enforce: the output is read, and nothing else changes.
        needed = constraint is not None or chat.max_reasoning_tokens is not None
        whole = _with_reasoning(constraint, reasoning, chat, is_open=is_open) if reasoning and needed else constraint
        reading = Reading(reasoning=reasoning, is_open=is_open) if reasoning else None
        return ChatPlan(whole, reading)
    tool_format = FORMATS.get(info.tool_format)
    if tool_format is None:
        problem = (
            f"the chat template of {info.model} writes tool calls in no known format; the option tool_format sets one"
        )
        raise InvalidRequestError(FieldViolation("chat.tools", problem))
    answer = _answer(constraint)
    required = chat.tool_choice.mode == "required"
    or_json = constraint is not None and constraint.is_json
    if or_json and not required and tool_format.first_character == "{":
        problem = (
            f"a call in the format {tool_format.name} is JSON, too, so an answer in JSON could be read as a call: set "
            'tool_choice to "required" or "none", or leave the constraint out'
        )
        raise InvalidRequestError(FieldViolation("chat.tools", problem))
    writer = _Writer(tool_format, chat, tools, answer)
    form = writer.form(behind_reasoning=bool(reasoning))
    tags = writer.tags(form)
    places = [(f"constraint.structural_tag#{pointer}", place) for pointer, place in writer.places(form)]
    places.append(("constraint.structural_tag", writer.place))
    source = json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)
    base = constraint or Constraint(structural_tag=source)
    unset = {kind: Constraint.model_fields[kind].default for kind in CONSTRAINT_KINDS}
    whole = base.model_copy(update=unset | {"structural_tag": source})
    if reasoning:
        whole = _with_reasoning(whole, reasoning, chat, is_open=is_open)
    trigger = tool_format.trigger if constraint is None and tools and chat.tool_choice.mode == "auto" else ""
    begins = tuple(tool_format.open + tool_format.begin(tool.name) for tool in tools)
    reading = Reading(
        tool_format=tool_format,
        calls=tuple(tags),
        trigger=trigger,
        begins=begins,
        reasoning=reasoning,
        is_open=is_open,
        only_calls=required,
        or_json=or_json,
    )
    return ChatPlan(whole, reading, tuple(places))


def _callable(chat: Chat) -> tuple[Tool, ...]:
    """The tools that an output may call."""
    choice = chat.tool_choice
    if choice.mode == "none":
        return ()
    return tuple(tool for tool in chat.tools if not choice.names or tool.name in choice.names)


def _reasoning(
    chat: Chat, constraint: Constraint[Any] | None, info: EngineInfo, prompt_end: Callable[[], str]
) -> tuple[tuple[str, str] | None, bool]:
    """The marks of the reasoning, if the outputs may have any, and whether the prompt has opened it."""
    marks = info.reasoning
    if chat.max_reasoning_tokens is not None and constraint is not None and constraint.reasoning is not None:
        problem = "set one of it and constraint.reasoning"
        raise InvalidRequestError(FieldViolation("chat.max_reasoning_tokens", problem))
    if marks is None or (constraint is not None and constraint.reasoning is not None):
        return None, False
    if unread := _unread(chat, constraint):
        if chat.max_reasoning_tokens is not None:
            raise InvalidRequestError(FieldViolation("chat.max_reasoning_tokens", f"has no effect where {unread}"))
        return None, False
    end = prompt_end().rstrip()
    if end.endswith(marks[1]):
        return None, False  # the prompt has closed it
    return marks, end.endswith(marks[0])


def _unread(chat: Chat, constraint: Constraint[Any] | None) -> str:
    """Why the client reads the reasoning of outputs itself; empty if the engine does."""
    if chat.rendering.continue_final_message:
        return "the last message is continued"
    if not chat.rendering.add_generation_prompt:
        return "no new message is begun"
    return "structural_tag is set" if constraint is not None and constraint.structural_tag is not None else ""


def _with_reasoning(
    constraint: Constraint[Any] | None, marks: tuple[str, str], chat: Chat, *, is_open: bool
) -> Constraint[Any]:
    begin, end = marks
    reasoning = Reasoning(
        begin="" if is_open else begin, end=end, max_tokens=chat.max_reasoning_tokens, required=is_open
    )
    return (
        Constraint(reasoning=reasoning)
        if constraint is None
        else constraint.model_copy(update={"reasoning": reasoning})
    )


_ANSWERS: dict[str, Callable[[Any], _Format]] = {
    "json_schema": lambda schema: {"type": "json_schema", "json_schema": schema},
    "json_object": lambda _: {"type": "json_schema", "json_schema": {"type": "object"}},
    "regex": lambda regex: {"type": "regex", "pattern": regex},
    "choice": lambda texts: {"type": "or", "elements": [{"type": "const_string", "value": text} for text in texts]},
    "grammar": lambda grammar: {"type": "grammar", "grammar": grammar},
}
"""The format of an answer without calls, by the kind of its constraint."""


def _answer(constraint: Constraint[Any] | None) -> _Format | None:
    """The format of an answer without calls; None for any text."""
    kind = None if constraint is None else constraint.kind
    if kind is None:
        return None
    if kind not in _ANSWERS:
        raise InvalidRequestError(FieldViolation(f"constraint.{kind}", "cannot come with tools"))
    return _ANSWERS[kind](getattr(constraint, kind))


class _Writer:
    """Writes the structural tag of a chat's tools."""

    def __init__(self, tool_format: ToolFormat, chat: Chat, tools: tuple[Tool, ...], answer: _Format | None) -> None:
        """``tools`` are those that may be called, ``answer`` is the format of an answer without calls."""
        self._format = tool_format
        self._tools = tools
        self._required = chat.tool_choice.mode == "required"
        self._parallel = chat.parallel_tool_calls is not False and not chat.tool_choice.single
        self._answer = answer
        self._index = {tool.name: index for index, tool in enumerate(chat.tools)}
        self._tags = [self._tag(tool) for tool in tools]

    def tags(self, form: _Format) -> list[tuple[str, str]]:
        """The tool of each tag in `form`, by the tag's pointer."""
        found = {id(value): pointer for pointer, value in _walk(form, "/format")}
        return [(found[id(tag)], tool.name) for tag, tool in zip(self._tags, self._tools, strict=True)]

    def places(self, form: _Format) -> Iterator[tuple[str, str]]:
        """Pairs of a schema's pointer in `form` and its place in the request."""
        found = {id(value): pointer for pointer, value in _walk(form, "/format")}
        for tag, tool in zip(self._tags, self._tools, strict=True):
            for pointer, value in _walk(tag["content"], found[id(tag)] + "/content"):
                if value["type"] == "json_schema":
                    within, place = value.pop(PLACE, ("", ""))
                    yield f"{pointer}/json_schema{within}", self._place(tool) + place
            yield found[id(tag)], self._place(tool)
        if self._answer is not None:
            answer = found.get(id(self._answer), "")
            yield f"{answer}/json_schema", "constraint.json_schema"
            yield f"{answer}/pattern", "constraint.regex"
            yield f"{answer}/grammar", "constraint.grammar"

    @property
    def place(self) -> str:
        """The place in the request of what has none of its own."""
        return "constraint.grammar" if self._answer is not None and "grammar" in self._answer else "chat.tools"

    def _place(self, tool: Tool) -> str:
        return f"chat.tools[{self._index[tool.name]}].parameters"

    def form(self, *, behind_reasoning: bool) -> _Format:
        """The format of the output; ``behind_reasoning``: it may begin with an empty line, as models then do."""
        how = self._format
        if not self._tags:
            return self._no_calls()
        calls: _Format = {
            "type": "tags_with_separator",
            "tags": self._tags,
            "separator": how.separator,
            "at_least_one": True,
            "stop_after_first": not self._parallel,
        }
        empty_line = [{"type": "optional", "content": {"type": "const_string", "value": "\n\n"}}]
        before = empty_line if behind_reasoning else []
        whole = {"type": "sequence", "elements": [*_text(how.open), calls, *_text(how.close)]}
        if self._required:
            return {"type": "sequence", "elements": [*before, whole]}
        if self._answer is not None:
            return {"type": "sequence", "elements": [*before, {"type": "or", "elements": [whole, self._answer]}]}
        if not how.trigger:
            either = {"type": "or", "elements": [whole, self._no_calls(also_not="\n" if before else "")]}
            return {"type": "sequence", "elements": [*before, either]}
        if how.open:
            section = {"type": "tag", "begin": how.open, "content": calls, "end": how.close}
            return {"type": "triggered_tags", "triggers": [how.trigger], "tags": [section], "stop_after_first": True}
        once = not self._parallel
        return {"type": "triggered_tags", "triggers": [how.trigger], "tags": self._tags, "stop_after_first": once}

    def _no_calls(self, also_not: str = "") -> _Format:
        """The format of any text without calls, which does not begin with the characters in ``also_not`` either."""
        if self._format.trigger:
            return {"type": "any_text", "excludes": [self._format.trigger]}
        return {"type": "any_text", "not_first": self._format.first_character + also_not}

    def _tag(self, tool: Tool) -> _Format:
        how = self._format
        schema = self._schema(tool)
        content: _Format = {"type": "json_schema", "json_schema": schema, "close_objects": True}
        if how.arguments == "python":
            try:
                content = python_arguments(schema)
            except NoArgumentsError as error:
                raise InvalidRequestError(FieldViolation(f"{self._place(tool)}#{error.pointer}", str(error))) from None
        return {"type": "tag", "begin": how.begin(tool.name), "content": content, "end": how.end}

    def _schema(self, tool: Tool) -> dict[str, Any]:
        """A tool's schema, which is that of an object."""
        try:
            schema = json.loads(tool.parameters, object_pairs_hook=unique_members)
        except RepeatedMemberError as error:
            raise InvalidRequestError(FieldViolation(self._place(tool), str(error))) from None
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(FieldViolation(self._place(tool), f"is not JSON: {error}")) from None
        if not isinstance(schema, dict):
            raise InvalidRequestError(FieldViolation(self._place(tool), "has to be a JSON Schema of an object"))
        if schema.get("type", "object") != "object":
            raise InvalidRequestError(FieldViolation(f"{self._place(tool)}#/type", 'arguments are an "object"'))
        if schema.get("properties") == {} and schema.keys() <= _PLAIN:
            # Without any property, ``close_objects`` takes an object for an open one.
            schema["additionalProperties"] = False
        return {"type": "object", **schema}


_PLAIN = frozenset(("type", "properties", "required", "title", "description", "$schema"))
"""The keywords of a schema that says nothing about other members."""


def _text(text: str) -> list[_Format]:
    return [{"type": "const_string", "value": text}] if text else []


def _walk(form: Any, pointer: str) -> Iterator[tuple[str, _Format]]:
    """All formats in a format, with their pointers; not the insides of schemas."""
    if isinstance(form, dict):
        yield pointer, form
        for name in ("content", "elements", "tags"):
            if name in form:
                yield from _walk(form[name], f"{pointer}/{name}")
    elif isinstance(form, list):
        for index, each in enumerate(form):
            yield from _walk(each, f"{pointer}/{index}")
