"""``TokenizerPool``: tokenizes prompts without holding up the streams.

A short prompt is tokenized on the event loop, which takes about as long as asking another thread. Long ones go to
worker processes of the lowest priority, a few at a time, in turns between callers. Their number and length are bounded.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from functools import partial

from draftline.engine.chat.messages import Chat
from draftline.engine.errors import QueueFullError
from draftline.engine.protocol import EngineInfo, Prompt
from draftline.engine.request.tokenization import tokenize
from draftline.models.tokenization.tokenizer import Tokenizer
from draftline.structured.errors import JobQueueFullError
from draftline.structured.job_queue import JobQueue, QueuedJob
from draftline.structured.worker_processes import WorkerProcesses

LONG = 4096
"""Characters from which a prompt is long."""

_AROUND = 16
"""Characters that a template writes around a message or a call, about as few as any does."""

_MAX_WAITING = 64
"""Long prompts that may wait."""

_RETRY_S = 1.0
"""Delay in seconds after which a client should send a long prompt again that there was no room for."""


class TokenizerPool:
    """Tokenizes for one engine. Only one event loop may use it."""

    def __init__(self, tokenizer: Tokenizer, info: EngineInfo) -> None:
        """No process is started yet."""
        self._tokenizer = tokenizer
        self._info = info
        # The streams need the processor more: a quarter of its cores.
        max_workers = max(1, (os.cpu_count() or 1) // 4)
        self._queue: JobQueue[Sequence[int]] = JobQueue(max_workers, _MAX_WAITING, "long prompts wait")
        self._processes = WorkerProcesses("draftline.engine.process.tokenizer_worker", (tokenizer, info))

    async def token_ids(self, prompt: str | Chat, caller: str) -> Sequence[int]:
        """The token ids of a text, or of a chat through the model's template.

        Args:
            prompt: the text or the chat. Its length was checked (`draftline.engine.server.limits`).
            caller: whose it is: callers take turns.

        Raises:
            InvalidRequestError: see `tokenize`.
            QueueFullError: too many long prompts wait.
        """
        if prompt_size(prompt) < LONG:
            return tokenize(prompt, self._tokenizer, self._info)
        try:
            future = self._queue.submit(caller, partial(self._ask, prompt)).join()
        except JobQueueFullError as error:
            raise QueueFullError(str(error), _RETRY_S) from error
        assert future is not None, "a job without futures cannot be over"
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End the processes. Prompts in flight fail."""
        self._processes.close()
        self._queue.close()

    def _ask(self, prompt: str | Chat, job: QueuedJob[Sequence[int]]) -> Sequence[int]:
        answers, death = self._processes.answers(prompt)
        if death is not None:
            raise RuntimeError(f"the tokenizer's process ended with {death}")
        [answer] = answers
        if isinstance(answer, Exception):
            raise answer
        ids: Sequence[int] = answer
        return ids


def prompt_size(prompt: Prompt) -> int:
    """The number of characters that tokenizing ``prompt`` reads, roughly. Token ids have none."""
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, Chat):
        size = sum(_AROUND + len(content) for _, content in prompt.messages)
        size += sum(len(tool.name) + len(tool.description) + len(tool.parameters) for tool in prompt.tools)
        for details in prompt.details.values():
            size += len(details.reasoning) + len(details.tool_call_id)
            for call in details.tool_calls:
                size += _AROUND + len(call.id) + len(call.name) + len(call.arguments)
        if prompt.rendering.variables:
            size += len(json.dumps(dict(prompt.rendering.variables)))
        return size
    return 0
