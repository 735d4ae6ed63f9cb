"""The parts that answers of several endpoints share: ids, usage, finish reasons and log-probabilities."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pydantic_core import to_json

from draftline.engine.chat.calls import ToolCallDelta
from draftline.engine.outputs import (
    CompletionOutput,
    Delta,
    Finished,
    FinishReason,
    PositionLogprobs,
    RequestOutput,
    TokenLogprob,
)
from draftline.engine.protocol import EngineInfo
from draftline.engine.server.http.generation import Generation
from draftline.engine.server.http.text_offsets import TextOffsets, echo_offsets
from draftline.models.tokenization.tokenizer import Tokenizer

_FINISH: Mapping[FinishReason, str] = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",  # an operator ended it; vLLM's word
}


def new_id(prefix: str) -> str:
    """An id that no other answer has: ``chatcmpl-…``."""
    return f"{prefix}{uuid4().hex}"


@dataclass(frozen=True, slots=True)
class Head:
    """The fields that all chunks of one answer have.

    Attributes:
        id: of the answer.
        model: the served model's name.
        fingerprint: of the engine.
        created: the time in seconds since 1970.
    """

    id: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))
    _shared: dict[str, bytes] = field(default_factory=dict)

    @staticmethod
    def of(prefix: str, model: str, info: EngineInfo) -> Head:
        """The head of a new answer of ``model``; ``prefix`` begins its id."""
        return Head(new_id(prefix), model, info.system_fingerprint)

    def chunk(self, kind: str, choice: Mapping[str, Any], usage: Mapping[str, int] | None) -> bytes:
        """The JSON of `fields` with one choice, and its usage so far if there is any.

        What all chunks share is written once: a stream has one chunk a token.
        """
        shared = self._shared.get(kind)
        if shared is None:
            shared = self._shared[kind] = to_json(self.fields(kind, ())).removesuffix(b"]}")
        end = b"]}" if usage is None else b'],"usage":%b}' % to_json(usage)
        return b"%b%b%b" % (shared, to_json(choice), end)

    def fields(self, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """An answer, or a chunk of one, of OpenAI's ``object`` ``kind``."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


def finish(end: Finished) -> dict[str, Any]:
    """The fields of a choice that say why it ended. ``stop_reason`` is vLLM's."""
    calls = end.tool_calls and end.finish_reason is FinishReason.EOS
    return {"finish_reason": "tool_calls" if calls else _FINISH[end.finish_reason], "stop_reason": end.stop_reason}


def message_of(output: CompletionOutput[Any]) -> dict[str, Any]:
    """The message of a whole output."""
    message: dict[str, Any] = {"role": "assistant", "content": output.text, "refusal": None}
    if output.tool_calls:
        message["content"] = output.text or None
        message["tool_calls"] = [call.function() for call in output.tool_calls]
    if output.reasoning:
        message["reasoning_content"] = output.reasoning
    return message


def call_delta(part: ToolCallDelta) -> dict[str, Any]:
    """A part of a call in a chunk."""
    function = {"name": part.name, "arguments": part.arguments} if part.name else {"arguments": part.arguments}
    head = {"index": part.index, "id": part.id, "type": "function"} if part.id else {"index": part.index}
    return {**head, "function": function}


class UsageCount:
    """The tokens of an answer's outputs, as they end. The prompt of several outputs counts once."""

    def __init__(self) -> None:
        """No tokens yet."""
        self._prompts: dict[int, tuple[int, int]] = {}
        self._completion = 0
        self._accepted = 0
        self._drafted = 0
        self._reasoning = 0

    def add(self, prompt: int, end: Finished) -> None:
        """Count an output of the prompt with this index."""
        if end.index == 0 or prompt not in self._prompts:
            self._prompts[prompt] = (end.usage.prompt_tokens, end.usage.cached_tokens)
        self._completion += end.usage.completion_tokens
        self._reasoning += end.reasoning_tokens
        self._accepted += end.speculation.accepted
        self._drafted += end.speculation.drafted

    def fields(self) -> dict[str, Any]:
        """``usage`` of completions and chats."""
        prompt = sum(tokens for tokens, _ in self._prompts.values())
        details = {"completion_tokens_details": {"reasoning_tokens": self._reasoning}} if self._reasoning else {}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion,
            "total_tokens": prompt + self._completion,
            "prompt_tokens_details": {"cached_tokens": sum(cached for _, cached in self._prompts.values())},
            **details,
        }

    def response_fields(self) -> dict[str, Any]:
        """``usage`` of responses."""
        usage = self.fields()
        return {
            "input_tokens": usage["prompt_tokens"],
            # Writing to the prefix cache is not counted, and costs nothing.
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": self._completion,
            "output_tokens_details": {"reasoning_tokens": self._reasoning},
            "total_tokens": usage["total_tokens"],
        }


def usage_of(outputs: Iterable[RequestOutput[Any]]) -> UsageCount:
    """The tokens of whole outputs."""
    usage = UsageCount()
    for prompt, output in enumerate(outputs):
        for each in output.outputs:
            if each.finished is not None:
                usage.add(prompt, each.finished)
    return usage


class RunningUsage:
    """The tokens of each choice so far, which its chunks have: vLLM's ``continuous_usage_stats``."""

    def __init__(self, generation: Generation, outputs: int) -> None:
        """No tokens yet.

        Args:
            generation: of prompts whose tokens are known once it has started.
            outputs: of each prompt.
        """
        self._generation = generation
        self._outputs = outputs
        self._completion: Counter[int] = Counter()

    def add(self, choice: int, delta: Delta) -> None:
        """Count the tokens of a choice's part."""
        self._completion[choice] += len(delta.token_ids)

    def fields(self, choice: int) -> dict[str, int]:
        """``usage`` of the choice's next chunk."""
        prompt = len(self._generation.submitted[choice // self._outputs].token_ids)
        completion = self._completion[choice]
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class TokenTexts:
    """The texts of single tokens, for log-probabilities."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """The texts of a tokenizer's tokens."""
        self._tokenizer = tokenizer

    def data(self, token_id: int) -> bytes:
        """The bytes of a token. A special token has those of its name."""
        return self._tokenizer.token_bytes(token_id) or self._tokenizer.decode([token_id], skip_special=False).encode()

    def text(self, token_id: int) -> str:
        """The text of a token. Bytes that are a part of a character become U+FFFD."""
        return self.data(token_id).decode(errors="replace")

    def chat(self, positions: Iterable[PositionLogprobs]) -> list[dict[str, Any]]:
        """``logprobs.content`` of a chat: one entry for each position."""
        return [
            {**self._entry(position.chosen), "top_logprobs": [self._entry(top) for top in position.top]}
            for position in positions
        ]

    def _entry(self, token: TokenLogprob) -> dict[str, Any]:
        data = self.data(token.token_id)
        return {"token": data.decode(errors="replace"), "logprob": _finite(token.logprob), "bytes": list(data)}

    def completion(
        self, positions: Sequence[PositionLogprobs], offsets: TextOffsets, in_text: Callable[[int], bytes]
    ) -> dict[str, Any]:
        """``logprobs`` of a completion.

        Args:
            positions: of an output.
            offsets: has its earlier tokens.
            in_text: the bytes that the output's text has of a token.
        """
        ids = [position.chosen.token_id for position in positions]
        return {
            "tokens": [self.text(token_id) for token_id in ids],
            "token_logprobs": [_finite(position.chosen.logprob) for position in positions],
            "top_logprobs": [self._top(position) for position in positions],
            "text_offset": [offsets.push(in_text(token_id)) for token_id in ids],
        }

    def echo(self, text: str, ids: Sequence[int], positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
        """``logprobs`` of a prompt: its text, its tokens, and the positions of all but the first, which has none."""
        special = [not self._tokenizer.token_bytes(token_id) for token_id in ids]
        return {
            "tokens": [self.text(token_id) for token_id in ids],
            "token_logprobs": [None, *(_finite(position.chosen.logprob) for position in positions)],
            "top_logprobs": [None, *(self._top(position) for position in positions)],
            "text_offset": echo_offsets(text, [self.data(token_id) for token_id in ids], special),
        }

    def _top(self, position: PositionLogprobs) -> dict[str, float]:
        """The most likely tokens by text, the sampled one among them.

        Of tokens with one text, the most likely stands.
        """
        top: dict[str, float] = {}
        for token in (*position.top, position.chosen):
            top.setdefault(self.text(token.token_id), _finite(token.logprob))
        return top


def prompt_logprobs(texts: TokenTexts, output: RequestOutput[Any]) -> list[dict[str, Any] | None]:
    """VLLM's ``prompt_logprobs``: for each token of the prompt its log-probability and rank by token id; first none."""
    return [
        None,
        *(
            {
                str(token.token_id): {
                    "logprob": token.logprob,
                    "rank": token.rank,
                    "decoded_token": texts.text(token.token_id),
                }
                for token in (position.chosen, *position.top)
            }
            for position in output.prompt_logprobs or ()
        ),
    ]


def _finite(logprob: float) -> float:
    """JSON has no infinities. OpenAI writes -9999 for what is impossible."""
    return max(logprob, -9999.0)
