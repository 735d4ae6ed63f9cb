"""Keeps long work off the event loop: tokenizing long prompts goes to a thread, compiling constraints to the compiler's.

A short prompt stays on the loop, where tokenizing it takes about as long as the change of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from draftline.engine.protocol import Chat, EngineClient, GenerateRequest, Prompt, Sink
from draftline.engine.request.constraints import compile_constraint

LONG = 4096
"""Characters from which a prompt is long, and is tokenized on a thread."""

_T = TypeVar("_T")


def prompt_size(prompt: Prompt) -> int:
    """The number of characters that tokenizing ``prompt`` reads. Token ids have none."""
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, Chat):
        return sum(len(content) for _, content in prompt.messages)
    return 0


async def in_thread_if_long(size: int, work: Callable[[], _T]) -> _T:
    """``work()``, on a thread if its input has at least ``LONG`` characters or tokens."""
    return work() if size < LONG else await asyncio.to_thread(work)


async def submit(engine: EngineClient, request_id: str, request: GenerateRequest, sink: Sink) -> None:
    """`EngineClient.submit`, without blocking the event loop.

    If the caller is cancelled while a thread submits the request, the request is cancelled as soon as it is submitted.
    """
    if request.constraint is not None and engine.compiler is not None:
        # So that engine.submit finds it in the compiler's cache.
        await compile_constraint(engine.compiler, request.constraint, request.caller)
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
