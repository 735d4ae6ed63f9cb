"""Work that would hold the event loop up, elsewhere: tokenizing long prompts, on a thread; compiling constraints.

Short prompts are not worth the hop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from draftline.engine.protocol import Chat, EngineClient, GenerateRequest, Prompt, Sink
from draftline.engine.request.constraints import compile_constraint

LONG = 4096
"""Characters from which a prompt is tokenized on a thread; below, tokenizing takes about as long as the hop."""

_T = TypeVar("_T")


def prompt_size(prompt: Prompt) -> int:
    """Characters that must be tokenized."""
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, Chat):
        return sum(len(content) for _, content in prompt.messages)
    return 0


async def offloaded(size: int, work: Callable[[], _T]) -> _T:
    """``work()``, on a thread if its input is long."""
    return work() if size < LONG else await asyncio.to_thread(work)


async def submit(engine: EngineClient, request_id: str, request: GenerateRequest, sink: Sink) -> None:
    """`EngineClient.submit`, without holding the loop up.

    Where the caller is cancelled meanwhile, the request is cancelled once it has been submitted: nobody else could.
    """
    if request.constraint is not None and engine.compiler is not None:
        await compile_constraint(engine.compiler, request.constraint)  # so that submitting finds it ready
    if prompt_size(request.prompt) < LONG:
        engine.submit(request_id, request, sink)
        return
    submitting = asyncio.ensure_future(asyncio.to_thread(engine.submit, request_id, request, sink))
    try:
        await asyncio.shield(submitting)
    finally:
        if not submitting.done():
            submitting.add_done_callback(lambda done: _cancel_if_submitted(done, engine, request_id))


def _cancel_if_submitted(submitting: asyncio.Future[Sequence[int]], engine: EngineClient, request_id: str) -> None:
    if not submitting.cancelled() and submitting.exception() is None:
        engine.cancel(request_id)
