"""``AsyncEngine``: the engine for asyncio programs. Each request is an async iterator of its outputs so far."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self, Unpack

from draftline.engine.config import EngineConfig, EngineOptions
from draftline.engine.outputs import RequestOutput
from draftline.engine.params import RequestOptions, SamplingParams
from draftline.engine.protocol import Chat, EngineInfo, GenerateRequest
from draftline.engine.request.keywords import as_request
from draftline.engine.request.prompt_input import Message, PromptInput, as_chats, as_prompt
from draftline.engine.stats import EngineStats
from draftline.engine.streaming.accumulator import Accumulator
from draftline.engine.streaming.mailbox import Hub, Mailbox
from draftline.engine.threaded_engine import start_engine
from draftline.models.tokenization.tokenizer import Tokenizer


class AsyncEngine:
    """A model served to coroutines.

    Example:
        >>> async with await AsyncEngine.create("smollm2") as engine:
        ...     async for output in engine.generate("The sky is", SamplingParams(max_tokens=8)):
        ...         print(output.outputs[0].text)
    """

    def __init__(self, model: str = "smollm2", **options: Unpack[EngineOptions]) -> None:
        """Load ``model``. This blocks until it is loaded; see `create`.

        Args:
            model: an HF folder, a .gguf file, a hub id, or ``smollm2``, the embedded model.
            **options: the other fields of `EngineConfig`.

        Raises:
            pydantic.ValidationError: an unknown option, or one out of bounds.
            ModelLoadError: the model cannot be loaded.
        """
        self.config = EngineConfig.model_validate({"model": model, **options})
        self._engine = start_engine(self.config)

    @classmethod
    async def create(cls, model: str = "smollm2", **options: Unpack[EngineOptions]) -> Self:
        """Load ``model`` in a thread, so that the event loop stays free. See the class for arguments and errors."""
        return await asyncio.to_thread(lambda: cls(model, **options))

    @property
    def info(self) -> EngineInfo:
        """The served model, and the engine's limits."""
        return self._engine.info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._engine.tokenizer

    def stats(self) -> EngineStats:
        """The engine's counters after its last step."""
        return self._engine.stats()

    def generate(
        self,
        prompt: PromptInput | Chat,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt, yielding the outputs so far whenever there are new tokens.

        A slow consumer sees fewer, larger steps. Leaving the iteration early cancels the request.

        Args:
            prompt: a text, token ids, ``{"prompt": …}``, ``{"prompt_token_ids": […]}``, or a `Chat`.
            sampling_params: how its tokens are chosen, and when it ends.
            request_id: unique among the running requests; made up where None.
            **options: see `RequestOptions`: constraint, speculation, priority, and timeout in seconds.

        Raises:
            InvalidRequestError: the request cannot be served as asked.
            QueueFullError: too many requests wait.
            DeadlineExceededError: the request was not finished within ``timeout``.
            StepFailedError: a fault ended the request.
            EngineStoppedError: the engine was closed.
        """
        return self._outputs(as_request(as_prompt(prompt), sampling_params, options), request_id)

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer a conversation through the model's chat template. See `generate`."""
        [conversation] = as_chats([messages])
        return self._outputs(as_request(conversation, sampling_params, options), request_id)

    async def close(self) -> None:
        """Stop the engine. Requests still running fail with `EngineStoppedError`. Idempotent."""
        await asyncio.to_thread(self._engine.close)

    async def __aenter__(self) -> Self:
        """The running engine."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def _outputs(self, request: GenerateRequest, request_id: str | None) -> AsyncGenerator[RequestOutput, None]:
        request_id = request_id or uuid.uuid4().hex
        prompt = request.prompt
        mailbox = Mailbox(Hub(asyncio.get_running_loop()))
        token_ids = await asyncio.to_thread(self._engine.submit, request_id, request, mailbox.sink)
        text = prompt if isinstance(prompt, str) else None
        accumulator = Accumulator(request_id, text, token_ids, request.sampling.n)
        try:
            async for _, update in mailbox:
                ended = accumulator.take(update)
                yield accumulator.snapshot()
                if ended:
                    return
        finally:
            self._engine.cancel(request_id)
