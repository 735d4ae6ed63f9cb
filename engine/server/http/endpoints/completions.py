"""``POST /v1/completions``: prompts as texts or token ids, one or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field
from typing_extensions import override

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.outputs import CompletionOutput, Delta, Finished, FinishReason, RequestOutput
from draftline.engine.protocol import EngineClient
from draftline.engine.server.http.answers import (
    Head,
    RunningUsage,
    TokenTexts,
    UsageCount,
    finish,
    prompt_logprobs,
    usage_of,
)
from draftline.engine.server.http.body import ListOf, ResponseFormat, Streamed, check_stream
from draftline.engine.server.http.fields import Names
from draftline.engine.server.http.generation import Generation, PromptRequest, adds_special_tokens, check_prompt
from draftline.engine.server.http.params import constraint, request_of, sampling_names, sampling_params
from draftline.engine.server.http.stream import DONE, Answer, event, event_of
from draftline.engine.server.http.text_offsets import TextOffsets
from draftline.engine.server.limits import length_violations, refuse

DEFAULT_MAX_TOKENS = 16
"""Tokens of an output where the body sets none: OpenAI's default."""

MAX_PROMPTS = 1024
"""Prompts of one request."""


class CompletionBody(Streamed):
    """The body."""

    prompt: str | ListOf[str] | ListOf[int] | ListOf[ListOf[int]] = Field(
        description="a text, token ids, or a list of either"
    )
    max_tokens: int | None = Field(default=None, description=f"{DEFAULT_MAX_TOKENS} if unset")
    echo: bool | None = Field(default=None, description="begin each text with its prompt; max_tokens may be 0 then")
    add_special_tokens: bool | None = Field(
        default=None, description="vLLM's: tokenize texts with the tokenizer's special tokens; true if unset"
    )
    logprobs: int | None = Field(default=None, description="list this many of the most likely tokens")
    response_format: ResponseFormat | None = None

    @property
    def only_echoes(self) -> bool:
        """Whether the answer has the prompts alone, as clients ask that score texts by their log-probabilities."""
        return bool(self.echo) and self.max_tokens == 0


def prompt_requests(body: CompletionBody, engine: EngineClient, max_tokens: int) -> list[PromptRequest]:
    """The requests of a body, one for each prompt.

    Raises:
        InvalidRequestError: listing every invalid field.
    """
    check_stream(body)
    prompts = _prompts(body.prompt)
    echoes_logprobs = bool(body.echo) and body.logprobs is not None
    if echoes_logprobs and body.prompt_logprobs not in (None, body.logprobs):
        problem = f"is {body.prompt_logprobs}, but echo lists {body.logprobs} for the prompt, as many as logprobs says"
        raise InvalidRequestError(FieldViolation("prompt_logprobs", problem))
    of_prompt = body.logprobs if echoes_logprobs else body.prompt_logprobs
    # The engine samples at least one token. The answer leaves it out.
    sampled = body.model_copy(update={"max_tokens": 1}) if body.only_echoes else body
    sampling = sampling_params(
        sampled, engine.info, max_tokens=max_tokens, logprobs=body.logprobs, prompt_logprobs=of_prompt
    )
    constrained, names = constraint(body, body.response_format)
    requests: list[PromptRequest] = []
    for name, prompt in prompts:
        paths = [("text", name), ("token_ids.ids", name), ("token_ids", name), *names, *sampling_names(body)]
        told = Names(tuple(paths))
        check_prompt(prompt, engine, told, body.truncate_prompt_tokens)
        request = request_of(body, prompt, sampling, constrained)
        # An echo of log-probabilities shows the prompt's first token, which has none.
        needs_ids = echoes_logprobs or body.counts_chunks
        added = adds_special_tokens(body.add_special_tokens, prompt)
        requests.append(PromptRequest(request, told, body.truncate_prompt_tokens, needs_ids, added))
    return requests


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[tuple[str, str | Sequence[int]]]:
    """The prompts, each with its place in the body."""
    if isinstance(prompt, str):
        return [("prompt", prompt)]
    if not prompt:
        raise InvalidRequestError(FieldViolation("prompt", "is empty; a prompt needs at least one token"))
    several: list[tuple[str, str | Sequence[int]]] = [("prompt", prompt)] if isinstance(prompt[0], int) else []
    several = several or [(f"prompt[{index}]", each) for index, each in enumerate(prompt)]  # type: ignore[misc]
    refuse(*length_violations(several, MAX_PROMPTS, "prompt", "prompts"))
    return several


class CompletionAnswer(Answer):
    """The answer to a body, streamed or whole."""

    def __init__(self, body: CompletionBody, generation: Generation, engine: EngineClient, model: str) -> None:
        """An answer without text.

        Args:
            body: the body.
            generation: of the body's prompts; it may not have started.
            engine: that generates.
            model: its name.
        """
        self._body = body
        self._generation = generation
        self._tokenizer = engine.tokenizer
        self._texts = TokenTexts(engine.tokenizer)
        # Only the marks of a structural tag may be written with special tokens, whose names are then in the text.
        has_marks = body.structured_outputs is not None and body.structured_outputs.structural_tag is not None
        self._in_text = self._texts.data if has_marks else engine.tokenizer.token_bytes
        self._head = Head.of("cmpl-", model, engine.info)
        self._usage = UsageCount()
        self._running = RunningUsage(generation, self._outputs) if body.counts_chunks else None
        self._offsets: dict[int, TextOffsets] = {}  # of each choice's listed tokens
        # Updates of prompts whose echo waits for its log-probabilities, which come with the first output.
        self._held: dict[int, list[Delta | Finished]] = {}

    @override
    def begin(self) -> Iterator[bytes]:
        if not self._body.echo:
            return
        for prompt in range(len(self._generation.submitted)):
            if self._body.logprobs is not None:
                self._held[prompt] = []
                continue
            for index in range(self._outputs):
                yield self._chunk(self._number(prompt, index), self._echo(prompt), None, {})

    @override
    def update(self, prompt: int, update: Delta | Finished) -> Iterator[bytes]:
        if self._body.only_echoes:
            update = _without_tokens(update)
        held = self._held.get(prompt)
        if held is not None:
            held.append(update)
            if update.index:
                return
            del self._held[prompt]
            yield from self._echo_with_logprobs(prompt, update)
        for each in held or (update,):
            yield from self._events(prompt, each)

    def _echo_with_logprobs(self, prompt: int, update: Delta | Finished) -> Iterator[bytes]:
        """The events of a prompt, with the log-probabilities that come with its first output's first update."""
        positions = update.prompt_logprobs if isinstance(update, Delta) else ()
        text = self._echo(prompt)
        logprobs = self._texts.echo(text, self._ids(prompt), positions)
        for index in range(self._outputs):
            number = self._number(prompt, index)
            self._offsets[number] = TextOffsets(len(text))
            yield self._chunk(number, text, logprobs, {})

    def _events(self, prompt: int, update: Delta | Finished) -> Iterator[bytes]:
        number = self._number(prompt, update.index)
        match update:
            case Delta():
                if self._running is not None:
                    self._running.add(number, update)
                logprobs = None
                if update.logprobs:
                    offsets = self._offsets.setdefault(number, TextOffsets())
                    logprobs = self._texts.completion(update.logprobs, offsets, self._in_text)
                if update.text or logprobs:
                    yield self._chunk(number, update.text, logprobs, {})
            case Finished():
                self._usage.add(prompt, update)
                yield self._chunk(number, "", None, finish(update))

    @override
    def end(self) -> Iterator[bytes]:
        if self._body.includes_usage:
            yield event({**self._head.fields("text_completion", []), "usage": self._usage.fields()})
        yield DONE

    @override
    def whole(self, outputs: Sequence[RequestOutput[Any]]) -> dict[str, Any]:
        if self._body.only_echoes:
            outputs = [replace(output, outputs=[*map(_without_text, output.outputs)]) for output in outputs]
        choices = [
            self._choice(prompt, output, each) for prompt, output in enumerate(outputs) for each in output.outputs
        ]
        return {**self._head.fields("text_completion", choices), "usage": usage_of(outputs).fields()}

    def _choice(self, prompt: int, output: RequestOutput[Any], each: CompletionOutput[Any]) -> dict[str, Any]:
        echo = self._echo(prompt) if self._body.echo else ""
        logprobs = None
        if self._body.logprobs is not None:
            logprobs = self._texts.completion(each.logprobs or (), TextOffsets(len(echo)), self._in_text)
            if self._body.echo:
                before = self._texts.echo(echo, self._ids(prompt), output.prompt_logprobs or ())
                logprobs = {name: [*listed, *logprobs[name]] for name, listed in before.items()}
        assert each.finished is not None, "outputs are whole"
        choice = {
            "index": self._number(prompt, each.index),
            "text": echo + each.text,
            "logprobs": logprobs,
            **finish(each.finished),
        }
        if self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self._texts, output)
        return choice

    def _chunk(self, number: int, text: str, logprobs: object, end: dict[str, Any]) -> bytes:
        choice = {"index": number, "text": text, "logprobs": logprobs, **(end or {"finish_reason": None})}
        usage = None if self._running is None else self._running.fields(number)
        return event_of(self._head.chunk("text_completion", choice, usage))

    @property
    def _outputs(self) -> int:
        return self._body.n or 1

    def _number(self, prompt: int, index: int) -> int:
        return prompt * self._outputs + index

    def _ids(self, prompt: int) -> Sequence[int]:
        return self._generation.submitted[prompt].token_ids

    def _echo(self, prompt: int) -> str:
        """The prompt's text: as it was sent, or that of the token ids."""
        asked = self._body.prompt
        cut = self._body.truncate_prompt_tokens is not None
        if isinstance(asked, str) and not cut:
            return asked
        if isinstance(asked, list) and isinstance(asked[prompt], str) and not cut:
            return str(asked[prompt])
        return self._tokenizer.decode(self._ids(prompt), skip_special=False)


def _without_tokens(update: Delta | Finished) -> Delta | Finished:
    """An update of an answer that has the prompt alone."""
    match update:
        case Delta():
            return Delta(update.index, (), "", prompt_logprobs=update.prompt_logprobs)
        case Finished():
            return _at_once(update)


def _without_text(output: CompletionOutput[Any]) -> CompletionOutput[Any]:
    """A whole output of an answer that has the prompt alone."""
    assert output.finished is not None, "outputs are whole"
    return CompletionOutput(output.index, finished=_at_once(output.finished))


def _at_once(end: Finished) -> Finished:
    """An end at a limit of no tokens."""
    return replace(end, finish_reason=FinishReason.LENGTH, usage=replace(end.usage, completion_tokens=0))
