"""Prepares requests without holding up the event loop: constraints compile and long prompts are tokenized elsewhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from draftline.engine.chat.messages import Chat
from draftline.engine.protocol import EngineClient, GenerateRequest
from draftline.engine.request.compiled_ahead import compiled_ahead, in_time
from draftline.engine.server.tokenizer_pool import LONG, TokenizerPool, prompt_size


async def prepared(engine: EngineClient, tokenizers: TokenizerPool, request: GenerateRequest) -> GenerateRequest:
    """A request that `EngineClient.submit` takes at once. The request's timeout holds meanwhile.

    Raises:
        DraftlineError: the engine refuses the request, or it has timed out.
    """
    token_ids = partial(tokenizers.token_ids, caller=request.caller)

    async def ready() -> GenerateRequest:
        compiled = await compiled_ahead(engine, request, token_ids)
        prompt = compiled.prompt
        if compiled.prompt_token_ids is None and isinstance(prompt, str | Chat) and prompt_size(prompt) >= LONG:
            return replace(compiled, prompt_token_ids=await token_ids(prompt))
        return compiled

    return await in_time(request, ready())
