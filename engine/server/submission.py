"""Submits a request without holding up the event loop: constraints compile and long prompts are tokenized elsewhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from draftline.engine.chat.messages import Chat
from draftline.engine.protocol import EngineClient, GenerateRequest, Sink, Submitted
from draftline.engine.request.compiled_ahead import compiled_ahead
from draftline.engine.server.tokenizer_pool import LONG, TokenizerPool, prompt_size


async def submit(
    engine: EngineClient, tokenizers: TokenizerPool, request_id: str, request: GenerateRequest, sink: Sink
) -> Submitted:
    """`EngineClient.submit`, without blocking the event loop."""
    token_ids = partial(tokenizers.token_ids, caller=request.caller)
    request = await compiled_ahead(engine, request, token_ids)
    prompt = request.prompt
    if request.prompt_token_ids is None and isinstance(prompt, str | Chat) and prompt_size(prompt) >= LONG:
        request = replace(request, prompt_token_ids=await token_ids(prompt))
    return engine.submit(request_id, request, sink)
