"""Prepares requests without holding up the event loop: constraints compile and long prompts are tokenized elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from draftline.engine.chat.messages import Chat
from draftline.engine.protocol import EngineClient, GenerateRequest
from draftline.engine.request.compiled_ahead import compiled_ahead, in_time
from draftline.engine.server.tokenizer_pool import LONG, TokenizerPool, prompt_size

Preparation = Callable[[GenerateRequest], Awaitable[GenerateRequest]]
"""What a face needs to do to a request before the engine gets it, such as to replace its prompt by token ids."""


async def as_it_is(request: GenerateRequest) -> GenerateRequest:
    """The preparation of a face that needs none."""
    return request


async def prepared(
    engine: EngineClient, tokenizers: TokenizerPool, request: GenerateRequest, first: Preparation = as_it_is
) -> GenerateRequest:
    """A request that `EngineClient.submit` takes at once. The request's timeout holds meanwhile.

    Args:
        engine: will get the request.
        tokenizers: tokenize for the engine.
        request: the request.
        first: what is done before all else.

    Raises:
        DraftlineError: the engine refuses the request, or it has timed out.
    """
    token_ids = partial(tokenizers.token_ids, caller=request.caller)

    async def ready() -> GenerateRequest:
        compiled = await compiled_ahead(engine, await first(request), token_ids)
        prompt = compiled.prompt
        if compiled.prompt_token_ids is None and isinstance(prompt, str | Chat) and prompt_size(prompt) >= LONG:
            return replace(compiled, prompt_token_ids=await token_ids(prompt))
        return compiled

    return await in_time(request, ready())
