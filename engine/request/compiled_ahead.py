"""``compiled_ahead``: what a request's submission would wait for, done without holding up an event loop or a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from draftline.engine.chat.messages import Chat
from draftline.engine.errors import DeadlineExceededError, InvalidRequestError
from draftline.engine.protocol import CompiledPlan, EngineClient, GenerateRequest
from draftline.engine.request.constraints import check_enforced, compile_constraint
from draftline.engine.request.tokenization import last_tokens, prompt_end
from draftline.engine.tools.plan import plan_chat


async def compiled_ahead(
    engine: EngineClient, request: GenerateRequest, token_ids: Callable[[Chat], Awaitable[Sequence[int]]]
) -> GenerateRequest:
    """Plan a request and compile its constraint, so that `EngineClient.submit` waits for neither.

    Args:
        engine: will get the request.
        request: the request.
        token_ids: tokenizes a chat.

    Returns:
        The request with its plan, and with its chat's tokens if they decided its constraint.

    Raises:
        InvalidRequestError: the chat cannot be tokenized, or the compiler rejects the constraint.
        QueueFullError: too many constraints wait, or too many prompts.
        EngineStoppedError: the engine is closed, or was closed meanwhile.
    """
    # The constraint of a chat depends on its prompt's end, which may begin the reasoning.
    chat = request.prompt
    if (
        request.prompt_token_ids is None
        and isinstance(chat, Chat)
        and chat.messages
        and (engine.info.reasoning is not None or chat.tools)
    ):
        request = replace(request, prompt_token_ids=await token_ids(chat))
    ids = last_tokens(request.prompt_token_ids or (), request.sampling.truncate_prompt_tokens, engine.info)
    plan = plan_chat(request, engine.info, lambda: prompt_end(ids, engine.tokenizer))
    if plan.constraint is None:
        return replace(request, planned=CompiledPlan(plan))
    started = time.monotonic()
    try:
        check_enforced(plan.constraint, engine.info)
        compiled = await compile_constraint(engine.compiler, plan.constraint, request.caller)
    except InvalidRequestError as error:
        raise plan.error(error) from error
    return replace(request, planned=CompiledPlan(plan, compiled, time.monotonic() - started))


async def in_time(request: GenerateRequest, prepared: Awaitable[GenerateRequest]) -> GenerateRequest:
    """The request as it was prepared, with the rest of its timeout.

    Args:
        request: the request before.
        prepared: the request afterwards, which is awaited until the request's timeout is over.

    Raises:
        DeadlineExceededError: it was over before.
    """
    started = time.monotonic()
    try:
        async with asyncio.timeout(request.timeout_s):
            result = await prepared
    except TimeoutError:
        raise DeadlineExceededError from None
    if request.timeout_s is None:
        return result
    # The engine counts the time of the constraint itself.
    taken = time.monotonic() - started - result.constraint_compile_s
    return replace(result, timeout_s=request.timeout_s - taken)
