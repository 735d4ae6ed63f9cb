"""``POST /tokenize`` and ``POST /detokenize``, in vLLM's form."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from draftline.engine.chat.messages import Chat
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.request.request import out_of_range
from draftline.engine.server.http.body import Body, ListOf
from draftline.engine.server.http.call import HttpCall
from draftline.engine.server.http.fields import BY_TEMPLATE, INERT, Inert, Names
from draftline.engine.server.http.generation import check_prompt, token_ids
from draftline.engine.server.http.messages import RENDERED_PATHS, ChatMessage, Rendered, call_paths, chat
from draftline.engine.server.limits import MAX_DETOKENIZE, length_violations, refuse
from draftline.engine.server.state import ServerState
from draftline.engine.server.tokenizer_pool import LONG
from draftline.models.tokenization.tokenizer import Tokenizer

T = TypeVar("T")


class TokenizeBody(Rendered):
    """The body of ``/tokenize``: a prompt or messages."""

    inert: ClassVar[Mapping[str, Inert]] = {"chat_template": INERT["chat_template"]}

    model: str | None = Field(default=None, description="the served model; may be left out")
    prompt: str | None = None
    messages: ListOf[ChatMessage] | None = None
    add_special_tokens: bool | None = Field(
        default=None, description="vLLM's: tokenize a prompt with the tokenizer's special tokens; true if unset"
    )
    return_token_strs: bool | None = Field(default=None, description="list the text of each token, too")


class DetokenizeBody(Body):
    """The body of ``/detokenize``."""

    model: str | None = Field(default=None, description="the served model; may be left out")
    tokens: ListOf[int]


async def tokenize(body: TokenizeBody, state: ServerState, call: HttpCall) -> dict[str, Any]:
    """The tokens of a text or of a chat.

    Raises:
        InvalidRequestError: there is not exactly one of them, or it cannot be tokenized.
    """
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError(FieldViolation("prompt", "set one of prompt and messages"))
    engine = state.engine
    calls = call_paths(body.messages or [])
    names = Names((("text", "prompt"), *RENDERED_PATHS, *calls, ("chat.messages", "messages"), ("chat", "messages")))
    prompt: str | Chat
    if body.messages is None:
        of_chats = [name for name in Rendered.model_fields if getattr(body, name) is not None]
        refuse(*(FieldViolation(name, "is for messages, not for a prompt") for name in of_chats))
        prompt = body.prompt or ""
        check_prompt(prompt, engine, names, None)
    else:
        if body.add_special_tokens:
            refuse(FieldViolation("add_special_tokens", f"is not supported for messages: {BY_TEMPLATE}"))
        prompt = chat(body.messages, body, engine.info, "messages")
    try:
        ids = await token_ids(prompt, state, call)
    except InvalidRequestError as error:
        raise names.error(error) from None
    if body.prompt is not None and body.add_special_tokens is False:
        ids = list(engine.tokenizer.within(ids))
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": engine.info.max_model_len, "tokens": ids}
    if body.return_token_strs:
        answer["token_strs"] = await _off_the_loop(len(ids), partial(_texts, ids, engine.tokenizer))
    return answer


async def detokenize(body: DetokenizeBody, state: ServerState, call: HttpCall) -> dict[str, Any]:
    """The text of some tokens.

    Raises:
        InvalidRequestError: a number is no token id of the model, or there are too many.
    """
    refuse(*length_violations(body.tokens, MAX_DETOKENIZE, "tokens", "token ids"))
    engine = state.engine
    refuse(*out_of_range("tokens", body.tokens, engine.info))
    decode = partial(engine.tokenizer.decode, body.tokens, skip_special=False)
    return {"prompt": await _off_the_loop(len(body.tokens), decode)}


async def _off_the_loop(tokens: int, work: Callable[[], T]) -> T:
    """The result of work that takes time in proportion to ``tokens``, on another thread if they are many."""
    return await asyncio.to_thread(work) if tokens >= LONG else work()


def _texts(ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """The text of each token. Long texts repeat most of their tokens."""
    texts = {token: tokenizer.decode([token], skip_special=False) for token in set(ids)}
    return [texts[token] for token in ids]
