"""``AsyncEngine``: the engine for asyncio programs, as an async iterator of outputs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

from draftline.engine.build import build_core
from draftline.engine.config import EngineConfig
from draftline.engine.outputs import RequestOutput
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.protocol import EngineInfo, GenerateRequest, Prompt
from draftline.engine.stats import EngineStats
from draftline.engine.streaming.accumulator import Accumulator
from draftline.engine.streaming.mailbox import Hub, Mailbox
from draftline.engine.threaded_engine import ThreadedEngine
from draftline.kernels.compile_workers import KernelCompileWorkers
from draftline.models.tokenization.tokenizer import Tokenizer


def start_engine(config: EngineConfig, workers: KernelCompileWorkers | None = None) -> ThreadedEngine:
    """Load the model and start the step thread. Blocks while it loads. ``workers``: see `build_core`."""
    return ThreadedEngine(
        build_core(config, workers),
        max_waiting=config.max_waiting,
        max_waiting_tokens=config.max_waiting_tokens,
        ageing_s=config.ageing_s,
    )


class AsyncEngine:
    """A model served to coroutines.

    Example:
        >>> engine = AsyncEngine("smollm2")
        >>> async for output in engine.generate("The sky is", SamplingParams(max_tokens=8)):
        ...     print(output.outputs[0].text)
        >>> await engine.close()
    """

    def __init__(self, model: str = "smollm2", **options: object) -> None:
        """Load ``model`` (blocking; see `create`); ``options`` are `EngineConfig`'s other fields."""
        self.config = EngineConfig.model_validate({"model": model, **options})
        self._engine = start_engine(self.config)

    @classmethod
    async def create(cls, model: str = "smollm2", **options: object) -> AsyncEngine:
        """Load ``model`` in a thread, so that the event loop goes on."""
        return await asyncio.to_thread(cls, model, **options)

    @property
    def info(self) -> EngineInfo:
        """What is served, and its limits."""
        return self._engine.info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._engine.tokenizer

    def stats(self) -> EngineStats:
        """The engine's state after its last step."""
        return self._engine.stats()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        constraint: Constraint | None = None,
        speculation: Speculation | None = None,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Complete a prompt, yielding the outputs so far whenever there are new tokens.

        A slow consumer sees fewer, larger steps. Leaving the iteration early cancels the request.

        Raises:
            InvalidRequestError: the request cannot be served as asked.
            QueueFullError: too many requests wait.
            StepFailedError: a fault ended the request.
        """
        request_id = request_id or uuid.uuid4().hex
        sampling = sampling_params or SamplingParams()
        request = GenerateRequest(prompt, sampling, constraint, speculation or Speculation(), priority)
        mailbox = Mailbox(Hub(asyncio.get_running_loop()))
        token_ids = await asyncio.to_thread(self._engine.submit, request_id, request, mailbox.sink)
        accumulator = Accumulator(request_id, prompt if isinstance(prompt, str) else None, token_ids, sampling.n)
        try:
            async for _, update in mailbox:
                ended = accumulator.take(update)
                yield accumulator.snapshot()
                if ended:
                    return
        finally:
            self._engine.cancel(request_id)

    async def close(self) -> None:
        """Stop the engine; requests still running fail with `EngineStoppedError`."""
        await asyncio.to_thread(self._engine.close)
