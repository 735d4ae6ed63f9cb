"""``POST /generate``: a prompt in, a text out, in the form of a plain server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import Field
from typing_extensions import override

from draftline.engine.outputs import Delta, Finished, RequestOutput
from draftline.engine.params import DEFAULT_MAX_TOKENS as DEFAULT_MAX_TOKENS
from draftline.engine.protocol import EngineClient
from draftline.engine.server.http.answers import UsageCount, finish
from draftline.engine.server.http.body import Generating, ListOf, ResponseFormat
from draftline.engine.server.http.fields import Names
from draftline.engine.server.http.generation import Generation, PromptRequest, adds_special_tokens, check_prompt
from draftline.engine.server.http.params import constraint, request_of, sampling_names, sampling_params
from draftline.engine.server.http.stream import Answer, event


class PlainBody(Generating):
    """The body."""

    prompt: str | ListOf[int] = Field(description="a text or token ids")
    add_special_tokens: bool | None = Field(
        default=None, description="vLLM's: tokenize texts with the tokenizer's special tokens; true if unset"
    )
    max_new_tokens: int | None = Field(default=None, description=f"{DEFAULT_MAX_TOKENS} if unset")
    response_format: ResponseFormat | None = None


def prompt_requests(body: PlainBody, engine: EngineClient, max_tokens: int) -> list[PromptRequest]:
    """The request of a body.

    Raises:
        InvalidRequestError: listing every invalid field.
    """
    sampling = sampling_params(body, engine.info, max_tokens=max_tokens)
    constrained, names = constraint(body, body.response_format)
    paths = [("text", "prompt"), ("token_ids.ids", "prompt"), ("token_ids", "prompt"), *names, *sampling_names(body)]
    told = Names(tuple(paths))
    check_prompt(body.prompt, engine, told, body.truncate_prompt_tokens)
    request = request_of(body, body.prompt, sampling, constrained)
    added = adds_special_tokens(body.add_special_tokens, body.prompt)
    return [PromptRequest(request, told, body.truncate_prompt_tokens, add_special_tokens=added)]


class PlainAnswer(Answer):
    """The answer to a body, streamed or whole. Each event has the new text, and the last one how the output ended."""

    def __init__(self, body: PlainBody, generation: Generation, engine: EngineClient, model: str) -> None:
        """An answer without text.

        Args:
            body: the body.
            generation: of the body's prompt; it may not have started.
            engine: that generates.
            model: its name.
        """
        self._model = model

    @override
    def update(self, prompt: int, update: Delta | Finished) -> Iterator[bytes]:
        match update:
            case Delta():
                if update.text:
                    yield event({"text": update.text})
            case Finished():
                yield event({"text": "", **self._end_fields(update)})

    @override
    def whole(self, outputs: Sequence[RequestOutput[Any]]) -> dict[str, Any]:
        [output] = outputs
        [each] = output.outputs
        assert each.finished is not None, "outputs are whole"
        return {"text": each.text, **self._end_fields(each.finished)}

    def _end_fields(self, end: Finished) -> dict[str, Any]:
        usage = UsageCount()
        usage.add(0, end)
        return {
            **finish(end),
            "seed": end.seed,
            "usage": usage.fields(),
            "timing": asdict(end.timing),
            "model": self._model,
            "system_fingerprint": end.system_fingerprint,
        }
