"""Submits a request without holding up the event loop: constraints compile and long prompts are tokenized elsewhere."""

from __future__ import annotations

import time
from dataclasses import replace

from draftline.engine.protocol import Chat, EngineClient, GenerateRequest, Sink
from draftline.engine.request.constraints import compile_constraint
from draftline.engine.server.tokenizer_pool import LONG, TokenizerPool, prompt_size


async def submit(
    engine: EngineClient, tokenizers: TokenizerPool, request_id: str, request: GenerateRequest, sink: Sink
) -> None:
    """`EngineClient.submit`, without blocking the event loop."""
    if request.constraint is not None and engine.compiler is not None:
        # So that engine.submit finds it in the compiler's cache.
        started = time.monotonic()
        await compile_constraint(engine.compiler, request.constraint, request.caller)
        request = replace(request, constraint_compile_s=time.monotonic() - started)
    if prompt_size(request.prompt) >= LONG:
        assert isinstance(request.prompt, str | Chat)
        request = replace(request, prompt_token_ids=await tokenizers.token_ids(request.prompt, request.caller))
    engine.submit(request_id, request, sink)
