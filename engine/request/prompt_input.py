"""The shapes in which Python callers write prompts and their parameters: vLLM's, so that switching is one import."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.params import SamplingParams
from draftline.engine.protocol import Chat, Prompt

PromptInput = str | Sequence[int] | Mapping[str, object]
"""A text, token ids, or ``{"prompt_token_ids": [...]}`` / ``{"prompt": "..."}``."""

Message = Mapping[str, str]
"""A chat message: ``{"role": ..., "content": ...}``."""


def as_prompts(prompts: PromptInput | Sequence[PromptInput]) -> list[Prompt]:
    """Every prompt of one or of a list. A list of ints is one prompt of token ids.

    Raises:
        InvalidRequestError: one has none of the keys that a prompt can have.
    """
    if isinstance(prompts, str | Mapping) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [as_prompt(prompts)]  # type: ignore[arg-type]
    return [as_prompt(prompt) for prompt in prompts]  # type: ignore[arg-type]


def as_prompt(prompt: PromptInput | Chat) -> Prompt:
    """One prompt in the engine's types.

    Raises:
        InvalidRequestError: it has none of the keys that a prompt can have.
    """
    if not isinstance(prompt, Mapping):
        return prompt
    for key in ("prompt_token_ids", "prompt"):
        if key in prompt:
            return prompt[key]  # type: ignore[return-value]
    raise InvalidRequestError(
        FieldViolation("prompt", f"has neither 'prompt_token_ids' nor 'prompt', but {sorted(prompt)}")
    )


def as_chats(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Chat]:
    """Every conversation of one or of a list.

    Raises:
        InvalidRequestError: a message has other keys than role and content.
    """
    conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
    return [_chat(conversation) for conversation in conversations]  # type: ignore[arg-type]


def for_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    """The parameters of each of ``count`` prompts.

    Raises:
        InvalidRequestError: there are more or fewer of them.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise InvalidRequestError(FieldViolation("sampling_params", f"{len(params)} of them for {count} prompts"))
    return params


def _chat(messages: Iterable[Message]) -> Chat:
    pairs: list[tuple[str, str]] = []
    for place, message in enumerate(messages):
        if set(message) != {"role", "content"}:
            raise InvalidRequestError(
                FieldViolation(f"messages[{place}]", f"needs exactly 'role' and 'content', has {sorted(message)}")
            )
        pairs.append((message["role"], message["content"]))
    return Chat(tuple(pairs))
