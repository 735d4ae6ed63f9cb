"""``POST /v1/responses``: text and JSON by a schema, whole or as a stream of typed events. Nothing is stored."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, Literal

from pydantic import Field

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.outputs import Delta, Finished, FinishReason, PositionLogprobs, RequestOutput
from draftline.engine.protocol import EngineClient, GenerateRequest
from draftline.engine.server.http.answers import TokenTexts, UsageCount, new_id
from draftline.engine.server.http.body import Body, Generating, JsonSchema, ResponseFormat
from draftline.engine.server.http.errors import error_body
from draftline.engine.server.http.fields import INERT, Inert, Names
from draftline.engine.server.http.generation import Generation, Wanted
from draftline.engine.server.http.messages import ChatMessage, Rendered, chat
from draftline.engine.server.http.params import constraint, sampling_names, sampling_params, speculation
from draftline.engine.server.http.stream import event

LOGPROBS = "message.output_text.logprobs"


class InputItem(ChatMessage):
    """A message of the input, or one of an earlier answer."""

    type: Literal["message"] | None = None
    id: str | None = Field(default=None, description="no effect: nothing is stored")
    status: str | None = Field(default=None, description="no effect: of an earlier answer")


class TextFormat(Body):
    """The form of the output."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(default=None, description="a label")
    description: str | None = Field(default=None, description="a label")
    schema_: dict[str, Any] | None = Field(default=None, alias="schema", description="the schema")
    strict: bool | None = Field(default=None, description="no effect: schemas are always enforced exactly")


class TextOptions(Body):
    """Options of the output's text."""

    inert: ClassVar[Mapping[str, Inert]] = {"verbosity": INERT["verbosity"]}

    format: TextFormat | None = None


class ResponseStreamOptions(Body):
    """Options of a stream."""

    include_obfuscation: bool | None = Field(default=None, description="no effect: events are not padded")


class ResponseBody(Generating, Rendered):
    """The body."""

    input: str | list[InputItem]
    instructions: str | None = Field(default=None, description="a system message before the input")
    max_output_tokens: int | None = Field(default=None, description="as many as the context has room for if unset")
    text: TextOptions | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = Field(default=None, description="log-probabilities")
    top_logprobs: int | None = Field(default=None, description="and those of this many of the likeliest tokens")
    stream_options: ResponseStreamOptions | None = None


def wanted(body: ResponseBody, engine: EngineClient, max_tokens: int) -> list[Wanted]:
    """The request of a body.

    Raises:
        InvalidRequestError: listing every invalid field.
    """
    with_logprobs = LOGPROBS in (body.include or ())
    if body.top_logprobs and not with_logprobs:
        raise InvalidRequestError(FieldViolation("top_logprobs", f"is set, but include does not list {LOGPROBS}"))
    sampling = sampling_params(
        body, max_tokens=max_tokens, logprobs=(body.top_logprobs or 0) if with_logprobs else None
    )
    form = None if body.text is None or body.text.format is None else _form(body.text.format)
    constrained, names = constraint(body, form, "text.format", "schema")
    paths = [("chat.messages", "input"), ("chat", "input"), *names, *sampling_names(body)]
    request = GenerateRequest(
        chat(_messages(body), body, engine.info, "input"),
        sampling,
        constrained,
        speculation(body),
        body.priority or 0,
        body.timeout,
    )
    return [Wanted(request, Names(tuple(paths)), body.truncate_prompt_tokens)]


def _messages(body: ResponseBody) -> list[ChatMessage]:
    items: list[ChatMessage] = (
        [] if body.instructions is None else [ChatMessage(role="system", content=body.instructions)]
    )
    if isinstance(body.input, str):
        return [*items, ChatMessage(role="user", content=body.input)]
    return [*items, *body.input]


def _form(form: TextFormat) -> ResponseFormat:
    schema = None if form.schema_ is None else JsonSchema(schema=form.schema_)
    return ResponseFormat(type=form.type, json_schema=schema)


class ResponseAnswer:
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
        self._message_id = new_id("msg_")
        self._created = time.time()
        self._model = model
        self._fingerprint = engine.info.system_fingerprint
        self._numbers = count()
        self._text = ""
        self._logprobs: list[dict[str, Any]] = []
        self._end: Finished | None = None
        self._usage = UsageCount()

    def begin(self) -> Iterator[bytes]:
        """The events before the first update."""
        yield self._event("response.created", response=self._response("in_progress", []))
        yield self._event("response.in_progress", response=self._response("in_progress", []))
        yield self._event("response.output_item.added", output_index=0, item=self._message("in_progress", []))
        yield self._event("response.content_part.added", **self._place, part=self._part("", []))

    def update(self, prompt: int, update: Delta | Finished) -> Iterator[bytes]:
        """The events of an update."""
        match update:
            case Delta():
                logprobs = self._add(update.text, update.logprobs)
                if update.text or logprobs:
                    yield self._event(
                        "response.output_text.delta", **self._place, delta=update.text, logprobs=_briefly(logprobs)
                    )
            case Finished():
                self._finish(update)

    def end(self) -> Iterator[bytes]:
        """The events after the last update."""
        part = self._part(self._text, self._logprobs)
        status = self._status
        yield self._event(
            "response.output_text.done", **self._place, text=self._text, logprobs=_briefly(self._logprobs)
        )
        yield self._event("response.content_part.done", **self._place, part=part)
        message = self._message(status, [part])
        yield self._event("response.output_item.done", output_index=0, item=message)
        yield self._event(f"response.{status}", response=self._response(status, [message]))

    def fail(self, error: Exception) -> Iterator[bytes]:
        """The events of an error that ends the stream."""
        problem = error_body(error)["error"]
        message = self._message("incomplete", [self._part(self._text, self._logprobs)])
        response = self._response("failed", [message])
        response["error"] = {"code": "server_error", "message": problem["message"]}
        yield self._event("response.failed", response=response)

    def whole(self, outputs: Sequence[RequestOutput[Any]]) -> dict[str, Any]:
        """The answer at once."""
        [output] = outputs
        [each] = output.outputs
        assert each.finished is not None, "outputs are whole"
        self._add(each.text, each.logprobs or ())
        self._finish(each.finished)
        message = self._message(self._status, [self._part(self._text, self._logprobs)])
        return self._response(self._status, [message])

    def _add(self, text: str, positions: Sequence[PositionLogprobs]) -> list[dict[str, Any]]:
        logprobs = self._texts.chat(positions)
        self._text += text
        self._logprobs += logprobs
        return logprobs

    def _finish(self, end: Finished) -> None:
        self._end = end
        self._usage.add(0, end)

    @property
    def _status(self) -> str:
        """The status of a response that has ended."""
        complete = self._end is not None and self._end.finish_reason in (FinishReason.EOS, FinishReason.STOP)
        return "completed" if complete else "incomplete"

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": 0, "content_index": 0}

    def _event(self, name: str, **fields: Any) -> bytes:
        return event({"type": name, "sequence_number": next(self._numbers), **fields}, name)

    def _part(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._message_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        body, end = self._body, self._end
        form = {"type": "text"}
        if body.text is not None and body.text.format is not None:
            form = body.text.format.model_dump(by_alias=True, exclude_none=True)
        incomplete = None
        if status == "incomplete" and end is not None:
            cancelled = end.finish_reason is FinishReason.CANCELLED
            incomplete = {"reason": "cancelled" if cancelled else "max_output_tokens"}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": incomplete,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._model,
            "output": output,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": form},
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None if end is None else self._usage.response_fields(),
            "metadata": {},
            "system_fingerprint": self._fingerprint,
        }


def _briefly(logprobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Log-probabilities as events have them: without bytes."""
    return [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "top_logprobs": [{"token": top["token"], "logprob": top["logprob"]} for top in entry["top_logprobs"]],
        }
        for entry in logprobs
    ]
