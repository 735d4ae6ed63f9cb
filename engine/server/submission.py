"""Submits a request without holding up the event loop: constraints compile and long prompts are tokenized elsewhere."""

from __future__ import annotations

import time
from dataclasses import replace

from draftline.engine.chat.messages import Chat
from draftline.engine.errors import InvalidRequestError
from draftline.engine.protocol import EngineClient, GenerateRequest, Sink, Submitted
from draftline.engine.request.constraints import compile_constraint
from draftline.engine.request.tokenization import prompt_end
from draftline.engine.server.tokenizer_pool import LONG, TokenizerPool, prompt_size
from draftline.engine.tools.plan import plan_chat


async def submit(
    engine: EngineClient, tokenizers: TokenizerPool, request_id: str, request: GenerateRequest, sink: Sink
) -> Submitted:
    """`EngineClient.submit`, without blocking the event loop."""
    # The constraint of a chat depends on its prompt's end, which may begin the reasoning.
    planned = isinstance(request.prompt, Chat) and (engine.info.reasoning is not None or bool(request.prompt.tools))
    if request.prompt_token_ids is None and planned:
        request = await _tokenized(tokenizers, request)
    ids = request.prompt_token_ids or ()
    plan = plan_chat(request, engine.info, lambda: prompt_end(ids, engine.tokenizer))
    if plan.constraint is not None and engine.compiler is not None:
        # So that engine.submit finds it in the compiler's cache.
        started = time.monotonic()
        try:
            await compile_constraint(engine.compiler, plan.constraint, request.caller)
        except InvalidRequestError as error:
            raise plan.error(error) from error
        request = replace(request, constraint_compile_s=time.monotonic() - started)
    if request.prompt_token_ids is None and prompt_size(request.prompt) >= LONG:
        request = await _tokenized(tokenizers, request)
    return engine.submit(request_id, request, sink)


async def _tokenized(tokenizers: TokenizerPool, request: GenerateRequest) -> GenerateRequest:
    assert isinstance(request.prompt, str | Chat)
    if not request.prompt or (isinstance(request.prompt, Chat) and not request.prompt.messages):
        return request  # the engine says what is wrong
    return replace(request, prompt_token_ids=await tokenizers.token_ids(request.prompt, request.caller))
