"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field
from typing_extensions import override

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.outputs import CompletionOutput, Delta, Finished, RequestOutput
from draftline.engine.protocol import EngineClient
from draftline.engine.server.http.answers import (
    Head,
    RunningUsage,
    TokenTexts,
    UsageCount,
    call_delta,
    finish,
    message_of,
    prompt_logprobs,
    usage_of,
)
from draftline.engine.server.http.body import ListOf, ResponseFormat, Streamed, check_stream
from draftline.engine.server.http.fields import Names
from draftline.engine.server.http.generation import Generation, PromptRequest
from draftline.engine.server.http.messages import RENDERED_PATHS, ChatMessage, Rendered, call_paths, chat
from draftline.engine.server.http.params import constraint, request_of, sampling_names, sampling_params
from draftline.engine.server.http.stream import DONE, Answer, event, event_of
from draftline.engine.server.http.tools import (
    PATHS,
    AllowedToolsChoice,
    Choice,
    NamedTool,
    ToolBody,
    WithTools,
    choice_of,
    tool_paths,
    tools_of,
)


class ChatBody(Streamed, Rendered, WithTools):
    """The body."""

    messages: ListOf[ChatMessage]
    max_completion_tokens: int | None = Field(default=None, description="as many as the context has room for if unset")
    max_tokens: int | None = Field(default=None, description="the older name of max_completion_tokens")
    logprobs: bool | None = Field(default=None, description="list each token's log-probability")
    top_logprobs: int | None = Field(default=None, description="and those of this many of the likeliest tokens")
    response_format: ResponseFormat | None = None
    tools: ListOf[ToolBody] | None = Field(default=None, description="functions that the model may call")
    tool_choice: Choice[NamedTool, AllowedToolsChoice] | None = None


_TOOL = "tools[{}].function"


def prompt_requests(body: ChatBody, engine: EngineClient, max_tokens: int) -> list[PromptRequest]:
    """The request of a body.

    Raises:
        InvalidRequestError: listing every invalid field.
    """
    check_stream(body)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequestError(FieldViolation("top_logprobs", "is set, but logprobs is not"))
    sampling = sampling_params(
        body, engine.info, max_tokens=max_tokens, logprobs=(body.top_logprobs or 0) if body.logprobs else None
    )
    constrained, names = constraint(body, body.response_format)
    tools = tools_of([tool.function for tool in body.tools or ()], engine.info, _TOOL)
    paths = [
        *tool_paths(len(tools), _TOOL),
        *PATHS,
        *RENDERED_PATHS,
        *call_paths(body.messages),
        ("chat.messages", "messages"),
        ("chat", "messages"),
        *names,
        *sampling_names(body),
    ]
    prompt = chat(
        body.messages,
        body,
        engine.info,
        "messages",
        tools=tools,
        tool_choice=choice_of(body.tool_choice, tools),
        parallel_tool_calls=body.parallel_tool_calls,
        max_reasoning_tokens=body.max_reasoning_tokens,
    )
    request = request_of(body, prompt, sampling, constrained)
    return [PromptRequest(request, Names(tuple(paths)), body.truncate_prompt_tokens, body.counts_chunks)]


class ChatAnswer(Answer):
    """The answer to a body, streamed or whole."""

    def __init__(self, body: ChatBody, generation: Generation, engine: EngineClient, model: str) -> None:
        """An answer without text.

        Args:
            body: the body.
            generation: of the body's chat; it may not have started.
            engine: that generates.
            model: its name.
        """
        self._body = body
        self._texts = TokenTexts(engine.tokenizer)
        self._head = Head.of("chatcmpl-", model, engine.info)
        self._usage = UsageCount()
        self._running = RunningUsage(generation, body.n or 1) if body.counts_chunks else None

    @override
    def begin(self) -> Iterator[bytes]:
        for index in range(self._body.n or 1):
            yield self._chunk(index, {"role": "assistant", "content": ""}, None, {})

    @override
    def update(self, prompt: int, update: Delta | Finished) -> Iterator[bytes]:
        match update:
            case Delta():
                if self._running is not None:
                    self._running.add(update.index, update)
                logprobs = {"content": self._texts.chat(update.logprobs)} if update.logprobs else None
                delta: dict[str, Any] = {}
                if update.reasoning:
                    delta["reasoning_content"] = update.reasoning
                if update.text or (logprobs and not update.reasoning and not update.tool_calls):
                    delta["content"] = update.text
                if update.tool_calls:
                    delta["tool_calls"] = [call_delta(part) for part in update.tool_calls]
                if delta:
                    yield self._chunk(update.index, delta, logprobs, {})
            case Finished():
                self._usage.add(prompt, update)
                yield self._chunk(update.index, {}, None, finish(update))

    @override
    def end(self) -> Iterator[bytes]:
        if self._body.includes_usage:
            yield event({**self._head.fields("chat.completion.chunk", []), "usage": self._usage.fields()})
        yield DONE

    @override
    def whole(self, outputs: Sequence[RequestOutput[Any]]) -> dict[str, Any]:
        [output] = outputs
        choices = [self._choice(each) for each in output.outputs]
        answer = {**self._head.fields("chat.completion", choices), "usage": usage_of(outputs).fields()}
        if self._body.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(self._texts, output)
        return answer

    def _choice(self, each: CompletionOutput[Any]) -> dict[str, Any]:
        assert each.finished is not None, "outputs are whole"
        logprobs = {"content": self._texts.chat(each.logprobs or ()), "refusal": None} if self._body.logprobs else None
        return {
            "index": each.index,
            "message": message_of(each),
            "logprobs": logprobs,
            **finish(each.finished),
        }

    def _chunk(self, index: int, delta: dict[str, Any], logprobs: object, end: dict[str, Any]) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, **(end or {"finish_reason": None})}
        usage = None if self._running is None else self._running.fields(index)
        return event_of(self._head.chunk("chat.completion.chunk", choice, usage))
