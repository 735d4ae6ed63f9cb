"""The forms in which Python callers pass prompts and chats. They are vLLM's.

A wrong argument gets one sentence, the same on every face: its path, what it must be, and what it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeGuard, TypeVar

from draftline.engine.chat.messages import Chat, Message
from draftline.engine.errors import FieldViolation, InvalidRequestError, check_unicode, kind_of
from draftline.engine.params import UINT32_MAX, ChatOptions, RequestOptions
from draftline.engine.protocol import Prompt
from draftline.engine.request.token_ids import least_and_most

PromptInput = str | Sequence[int] | Mapping[str, object] | Chat
"""A text, token ids, ``{"prompt_token_ids": [...]}``, ``{"prompt": "..."}``, or a `Chat`."""

Conversation = Sequence[Message] | Chat
"""Chat messages."""

Located = tuple[Prompt, str]
"""A prompt, and its path in the argument that holds it: ``prompts[3]``; empty for a prompt that is the whole
argument."""

_A_PROMPT = "a text, token ids, {'prompt': …}, {'prompt_token_ids': […]} or a Chat"

_Each = TypeVar("_Each")


def as_prompts(prompts: PromptInput | Iterable[PromptInput]) -> list[Located]:
    """Convert one prompt, or several, to the engine's types. A list of ints is one prompt of token ids.

    Raises:
        InvalidRequestError: a prompt has another type.
    """
    if not _is_collection(prompts):
        return [(as_prompt(prompts), "")]
    several = list(prompts)
    if several and _is_integer(several[0]):
        return [(as_prompt(several), "")]
    return _located(several, as_prompt)


def chats_with_options(
    messages: Conversation | Iterable[Conversation], options: ChatOptions
) -> tuple[list[Located], RequestOptions]:
    """Convert one conversation, or several, with the options that are a chat's. Returns the other options too.

    Raises:
        InvalidRequestError: a conversation, a message or an option has another type.
    """
    rest = dict(options)
    chosen = {name: rest.pop(name) for name in _OF_CHATS if name in rest}
    chats = as_chats(messages)
    if chosen:
        chats = [(prompt.with_options(**chosen), path) for prompt, path in chats if isinstance(prompt, Chat)]
    return chats, rest  # type: ignore[return-value]


_OF_CHATS = ChatOptions.__annotations__.keys() - RequestOptions.__annotations__.keys()


def as_chats(messages: Conversation | Iterable[Conversation]) -> list[Located]:
    """Convert one conversation, or several, to chats. See `as_prompts`.

    Raises:
        InvalidRequestError: a conversation or a message has another type.
    """
    if not _is_collection(messages):
        return [(as_chat(messages), "")]
    several = list(messages)
    if several and isinstance(several[0], Mapping):
        return [(as_chat(several), "")]
    return _located(several, as_chat)


def as_prompt(prompt: object) -> Prompt:
    """Convert one prompt to the engine's types.

    Raises:
        InvalidRequestError: it has another type, a mapping has none of the two keys or another one, or a number is no
            token id.
    """
    if isinstance(prompt, Mapping):
        given = {name: value for name, value in prompt.items() if value is not None}
        if (
            not given
            or not given.keys() <= {"prompt", "prompt_token_ids"}
            or not isinstance(given.get("prompt", ""), str)
        ):
            raise _wrong_prompt(f"a dict with {sorted(map(str, given or prompt))}")
        if "prompt_token_ids" in given:  # of which the text beside them only tells
            return _token_ids(given["prompt_token_ids"])
        prompt = given["prompt"]
    if isinstance(prompt, str):
        check_unicode("text", prompt)
        return prompt
    return prompt if isinstance(prompt, Chat) else _token_ids(prompt)


def as_chat(messages: object) -> Chat:
    """Convert one conversation.

    Raises:
        InvalidRequestError: it is no list of messages.
    """
    return messages if isinstance(messages, Chat) else Chat(messages)  # type: ignore[arg-type]


def _located(values: Iterable[object], convert: Callable[[object], Prompt]) -> list[Located]:
    """Convert each of several prompts. An error names the prompt's path.

    Raises:
        InvalidRequestError: ``convert`` rejects a value.
    """
    prompts: list[Located] = []
    for index, value in enumerate(values):
        path = f"prompts[{index}]"
        try:
            prompts.append((convert(value), path))
        except InvalidRequestError as error:
            raise error.within(path) from None
    return prompts


def per_prompt(name: str, values: _Each | Sequence[_Each], count: int) -> Sequence[_Each]:
    """Return an argument's value for each prompt.

    Args:
        name: the argument, for the error.
        values: a list with one value for each prompt, or one value for all.
        count: the number of prompts.

    Raises:
        InvalidRequestError: the numbers of values and prompts differ.
    """
    if not isinstance(values, list | tuple):
        return [values] * count  # type: ignore[list-item]
    if len(values) != count:
        raise InvalidRequestError(FieldViolation(name, f"has {len(values)} entries for {count} prompts"))
    return values


def _token_ids(ids: object) -> Prompt:
    if not _is_collection(ids):
        raise _wrong_prompt(kind_of(ids))
    given = list(ids)
    # By type: prompts are long, and nearly all are lists of int.
    if set(map(type, given)) <= {int}:
        tokens: list[int] = given  # type: ignore[assignment]
    else:
        for index, token in enumerate(given):
            if not _is_integer(token):
                path, problem = f"token_ids.ids[{index}]", f"must be an int, not {kind_of(token)}"
                raise InvalidRequestError(FieldViolation(path, problem))
        tokens = [operator.index(token) for token in given]  # type: ignore[arg-type]
    least, most = least_and_most(tokens) if tokens else (0, 0)
    if least < 0 or most > UINT32_MAX:
        index = next(i for i, token in enumerate(tokens) if not 0 <= token <= UINT32_MAX)
        raise InvalidRequestError(FieldViolation(f"token_ids.ids[{index}]", f"{given[index]} is not a token id"))
    return tokens


def _wrong_prompt(kind: str) -> InvalidRequestError:
    return InvalidRequestError(FieldViolation("prompt", f"must be {_A_PROMPT}, not {kind}"))


def _is_collection(value: object) -> TypeGuard[Iterable[object]]:
    """Whether a value has parts of its own: a list, array or generator, not a text, mapping, chat or number."""
    if isinstance(value, str | bytes | bytearray | Mapping | Chat) or getattr(value, "ndim", 1) == 0:
        return False
    return isinstance(value, Iterable)


def _is_integer(value: object) -> bool:
    """Also NumPy's, and a single number of an array. An array of one number is an array."""
    if isinstance(value, bool) or getattr(value, "ndim", 0) != 0:
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:  # torch's floating-point numbers have the method, too
        return False
    return True
