"""``POST /v1/responses``: text and JSON by a schema, whole or as a stream of typed events. Nothing is stored."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from draftline.engine.chat.calls import ToolCallDelta
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.outputs import Delta, Finished, FinishReason, PositionLogprobs, RequestOutput
from draftline.engine.protocol import EngineClient
from draftline.engine.server.http.answers import TokenTexts, UsageCount, new_id
from draftline.engine.server.http.body import Body, Generating, JsonSchema, ListOf, ResponseFormat
from draftline.engine.server.http.endpoints.response_input import Item, conversation
from draftline.engine.server.http.errors import error_body
from draftline.engine.server.http.fields import INERT, INERT_IN_FUNCTION, Inert, Names
from draftline.engine.server.http.generation import Generation, PromptRequest
from draftline.engine.server.http.items import Events, Items
from draftline.engine.server.http.messages import RENDERED_PATHS, Rendered, chat, message_paths
from draftline.engine.server.http.params import constraint, request_of, sampling_names, sampling_params
from draftline.engine.server.http.stream import Answer, event
from draftline.engine.server.http.tools import (
    PATHS,
    Choice,
    FunctionBody,
    WithTools,
    choice_fields,
    choice_of,
    tool_paths,
    tools_of,
)

LOGPROBS = "message.output_text.logprobs"

_ERROR_CODES = {"invalid_request_error": "invalid_prompt", "rate_limit_error": "rate_limit_exceeded"}
"""The codes of a failed response, by the type of the error."""


class FunctionTool(FunctionBody):
    """A tool in the form of responses."""

    inert = INERT_IN_FUNCTION

    type: Literal["function"]


class NamedFunction(Body):
    """A choice of one function, in the form of responses."""

    type: Literal["function"]
    name: str


class AllowedFunctions(Body):
    """A choice of some functions, in the form of responses."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: ListOf[FunctionTool] = Field(description="by their names; a whole definition must be that of the tool")


class TextFormat(Body):
    """The form of the output."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(default=None, description="a label")
    description: str | None = Field(default=None, description="a label")
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema", description="the schema")
    strict: bool | None = Field(default=None, description="no effect: schemas are always enforced exactly")


class TextOptions(Body):
    """Options of the output's text."""

    inert: ClassVar[Mapping[str, Inert]] = {"verbosity": INERT["verbosity"]}

    format: TextFormat | None = None


class ResponseStreamOptions(Body):
    """Options of a stream."""

    include_obfuscation: bool | None = Field(default=None, description="no effect: events are not padded")


class ResponseBody(Generating, Rendered, WithTools):
    """The body."""

    input: str | ListOf[Item]
    tools: ListOf[FunctionTool] | None = Field(default=None, description="functions that the model may call")
    tool_choice: Choice[NamedFunction, AllowedFunctions] | None = None
    instructions: str | None = Field(default=None, description="a system message before the input")
    max_output_tokens: int | None = Field(default=None, description="as many as the context has room for if unset")
    text: TextOptions | None = None
    include: ListOf[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = Field(
        default=None, description="log-probabilities; no effect: reasoning, whose items have its text"
    )
    top_logprobs: int | None = Field(default=None, description="and those of this many of the likeliest tokens")
    stream_options: ResponseStreamOptions | None = None
    metadata: dict[str, Any] | None = Field(default=None, description="a label; it comes back")


def prompt_requests(body: ResponseBody, engine: EngineClient, max_tokens: int) -> list[PromptRequest]:
    """The request of a body.

    Raises:
        InvalidRequestError: listing every invalid field.
    """
    with_logprobs = LOGPROBS in (body.include or ())
    if body.top_logprobs and not with_logprobs:
        raise InvalidRequestError(FieldViolation("top_logprobs", f"is set, but include does not list {LOGPROBS}"))
    sampling = sampling_params(
        body, engine.info, max_tokens=max_tokens, logprobs=(body.top_logprobs or 0) if with_logprobs else None
    )
    form = None if body.text is None or body.text.format is None else _form(body.text.format)
    constrained, names = constraint(body, form, "text.format", "schema")
    tools = tools_of(body.tools or (), engine.info, "tools[{}]")
    messages = conversation(body.instructions, body.input)
    places = [place for _, place in messages]
    paths = [
        *tool_paths(len(tools), "tools[{}]"),
        *PATHS,
        *RENDERED_PATHS,
        *message_paths(places),
        ("chat.messages", "input"),
        ("chat", "input"),
        *names,
        *sampling_names(body),
    ]
    prompt = chat(
        [message for message, _ in messages],
        body,
        engine.info,
        "input",
        places,
        tools=tools,
        tool_choice=choice_of(body.tool_choice, tools),
        parallel_tool_calls=body.parallel_tool_calls if tools else None,  # OpenAI takes it without tools, too
        max_reasoning_tokens=body.max_reasoning_tokens,
    )
    request = request_of(body, prompt, sampling, constrained)
    return [PromptRequest(request, Names(tuple(paths)), body.truncate_prompt_tokens)]


def _form(form: TextFormat) -> ResponseFormat:
    schema = None if form.schema_ is None else JsonSchema(schema=form.schema_)
    return ResponseFormat(type=form.type, json_schema=schema)


class ResponseAnswer(Answer):
    """The answer to a body, streamed or whole."""

    def __init__(self, body: ResponseBody, generation: Generation, engine: EngineClient, model: str) -> None:
        """An answer without text.

        Args:
            body: the body.
            generation: of the body's input; it may not have started.
            engine: that generates.
            model: its name.
        """
        self._body = body
        self._texts = TokenTexts(engine.tokenizer)
        self._id = new_id("resp_")
        self._created = time.time()
        self._model = model
        self._fingerprint = engine.info.system_fingerprint
        self._numbers = count()
        self._items = Items()
        self._held: list[PositionLogprobs] = []  # of tokens without text, behind the last one with text
        self._end: Finished | None = None
        self._error: dict[str, str] | None = None
        self._usage = UsageCount()

    @override
    def begin(self) -> Iterator[bytes]:
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    @override
    def update(self, prompt: int, update: Delta | Finished) -> Iterator[bytes]:
        match update:
            case Delta():
                positions = [*self._held, *update.logprobs]
                if update.reasoning or self._items.last == "reasoning":  # among them are those of the mark behind it
                    positions = self._last(positions, update.text)
                for name, fields in self._parts(update.text, update.reasoning, update.tool_calls, positions):
                    yield self._event(name, **fields)
            case Finished():
                self._finish(update)

    @override
    def end(self) -> Iterator[bytes]:
        for name, fields in self._ends():
            yield self._event(name, **fields)
        yield self._event(f"response.{self._status}", response=self._response(self._status))

    @override
    def fail(self, error: Exception) -> Iterator[bytes]:
        for _ in self._items.end("incomplete"):
            pass
        told = error_body(error)["error"]
        self._error = {"code": _ERROR_CODES.get(told["type"], "server_error"), "message": told["message"]}
        yield self._event("response.failed", response=self._response("failed"))

    @override
    def whole(self, outputs: Sequence[RequestOutput[Any]]) -> dict[str, Any]:
        [output] = outputs
        [each] = output.outputs
        assert each.finished is not None, "outputs are whole"
        calls = [ToolCallDelta(index, call.id, call.name, call.arguments) for index, call in enumerate(each.tool_calls)]
        self._finish(each.finished)
        positions = list(each.logprobs or ())[each.finished.reasoning_tokens :]
        if calls:  # a call's tokens follow those of the text
            positions = self._first(positions, each.text)
        for _ in self._parts(each.text, each.reasoning or "", calls, positions):
            pass
        for _ in self._ends():
            pass
        return self._response(self._status)

    def _parts(
        self, text: str, reasoning: str, calls: Sequence[ToolCallDelta], positions: list[PositionLogprobs]
    ) -> Events:
        if reasoning:
            yield from self._items.add_reasoning(reasoning)
        if text:
            yield from self._items.add_text(text, self._texts.chat(positions))
        self._held = [] if text or reasoning or calls else positions
        for part in calls:
            yield from self._items.add_call(part)

    def _ends(self) -> Events:
        """The end of the items. Tokens without text at the end of a message, such as the last one, are its."""
        if self._held and self._items.last in ("message", None):
            yield from self._items.add_text("", self._texts.chat(self._held))
        yield from self._items.end(self._item_status)

    def _first(self, positions: Sequence[PositionLogprobs], text: str) -> list[PositionLogprobs]:
        """The first positions, as far as their tokens have the bytes of ``text``."""
        missing, count = len(text.encode()), 0
        while missing > 0 and count < len(positions):
            missing -= len(self._texts.data(positions[count].chosen.token_id))
            count += 1
        return list(positions[:count])

    def _last(self, positions: Sequence[PositionLogprobs], text: str) -> list[PositionLogprobs]:
        """The last positions likewise."""
        return self._first(positions[::-1], text)[::-1]

    def _finish(self, end: Finished) -> None:
        self._end = end
        if end.finish_reason is FinishReason.CANCELLED:
            self._error = {"code": "server_error", "message": "the server's operator ended the request"}
        self._usage.add(0, end)

    @property
    def _status(self) -> str:
        """The status of a response that has ended."""
        if self._error is not None:
            return "failed"
        complete = self._end is not None and self._end.finish_reason in (FinishReason.EOS, FinishReason.STOP)
        return "completed" if complete else "incomplete"

    @property
    def _item_status(self) -> str:
        return "completed" if self._status == "completed" else "incomplete"

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(self._numbers), **fields}, kind)

    def _response(self, status: str) -> dict[str, Any]:
        body, end = self._body, self._end
        form = {"type": "text"}
        if body.text is not None and body.text.format is not None:
            form = body.text.format.model_dump(by_alias=True, exclude_none=True)
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._model,
            "output": self._items.whole() if status != "in_progress" else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": form},
            "tool_choice": choice_fields(body.tool_choice),
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None if end is None else self._usage.response_fields(),
            "metadata": body.metadata or {},
            "system_fingerprint": self._fingerprint,
        }
