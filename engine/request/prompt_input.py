"""The forms in which Python callers pass prompts, chats and sampling parameters. They are vLLM's."""

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
    """Convert one prompt, or a list of them, to the engine's types. A list of ints is one prompt of token ids.

    Raises:
        InvalidRequestError: a prompt is a mapping without a known key.
    """
    if isinstance(prompts, str | Mapping) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [as_prompt(prompts)]  # type: ignore[arg-type]
    return [as_prompt(prompt) for prompt in prompts]  # type: ignore[arg-type]


def as_prompt(prompt: PromptInput | Chat) -> Prompt:
    """Convert one prompt to the engine's types.

    Raises:
        InvalidRequestError: the prompt is a mapping without a known key.
    """
    if not isinstance(prompt, Mapping):
        return prompt
    for key in ("prompt_token_ids", "prompt"):
        if key in prompt:
            return prompt[key]  # type: ignore[return-value]
    raise InvalidRequestError(FieldViolation("prompt", f"needs 'prompt_token_ids' or 'prompt', has {sorted(prompt)}"))


def as_chats(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Chat]:
    """Convert one conversation, or a list of them, to chats.

    Raises:
        InvalidRequestError: a message has other keys than ``role`` and ``content``.
    """
    conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
    return [_chat(conversation) for conversation in conversations]  # type: ignore[arg-type]


def per_prompt(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    """Return the sampling parameters of each prompt.

    Args:
        params: the parameters of all prompts, or one for each; None for the defaults.
        count: the number of prompts.

    Raises:
        InvalidRequestError: the numbers of parameters and prompts differ.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise InvalidRequestError(FieldViolation("sampling_params", f"has {len(params)} entries for {count} prompts"))
    return params


def _chat(messages: Iterable[Message]) -> Chat:
    pairs: list[tuple[str, str]] = []
    for index, message in enumerate(messages):
        if set(message) != {"role", "content"}:
            raise InvalidRequestError(
                FieldViolation(f"messages[{index}]", f"needs exactly 'role' and 'content', has {sorted(message)}")
            )
        pairs.append((message["role"], message["content"]))
    return Chat(tuple(pairs))
