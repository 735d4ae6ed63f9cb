"""``AsyncEngine``: the engine for asyncio programs. Each request is an async iterator of its outputs so far."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, Unpack

from draftline.engine.chat.messages import Chat
from draftline.engine.config import EngineConfig, EngineOptions
from draftline.engine.errors import InvalidRequestError, QueueFullError
from draftline.engine.extraction.result import Extraction
from draftline.engine.extraction.task import ExtractionOptions, extraction_attempts, run_attempts
from draftline.engine.outputs import ConstraintReport, RequestOutput
from draftline.engine.params import ChatOptions, RequestOptions, SamplingParams, T
from draftline.engine.protocol import EngineClient, EngineInfo, GenerateRequest, Sink, Submitted
from draftline.engine.request.compiled_ahead import compiled_ahead, in_time
from draftline.engine.request.constraints import compile_whole
from draftline.engine.request.keywords import OF_CHAT, ConstraintInput, as_request, known_constraint
from draftline.engine.request.prompt_input import Conversation, PromptInput, as_chat, as_prompt, chats_with_options
from draftline.engine.request.tokenization import tokenize
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
        self._hub: Hub | None = None

    @classmethod
    async def create(cls, model: str = "smollm2", **options: Unpack[EngineOptions]) -> Self:
        """Load ``model`` in a thread, so that the event loop stays free. See the class for arguments and errors.

        If it is cancelled, the engine is closed once it is loaded.
        """
        loading: Future[Self] = Future()

        def load() -> None:
            try:
                loading.set_result(cls(model, **options))
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                loading.set_exception(error)

        try:
            await asyncio.to_thread(load)
        except asyncio.CancelledError:
            loading.add_done_callback(cls._close_loaded)  # its thread goes on
            raise
        return loading.result()

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
        prompt: PromptInput,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: ConstraintInput[T] | None = None,
        request_id: str | None = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncGenerator[RequestOutput[T], None]:
        """Complete a prompt, yielding the outputs so far whenever there are new tokens.

        A slow consumer sees fewer, larger steps. Leaving the iteration early cancels the request.

        Args:
            prompt: a text, token ids, ``{"prompt": …}``, ``{"prompt_token_ids": […]}``, or a `Chat`.
            sampling_params: how its tokens are chosen, and when it ends.
            constraint: a constraint on every output. A type stands for its `Schema`.
            request_id: unique among the running requests; made up where None.
            **options: see `RequestOptions`: speculation, priority, and timeout in seconds.

        Raises:
            InvalidRequestError: the request cannot be served as asked.
            DuplicateRequestError: ``request_id`` is running already.
            QueueFullError: too many requests wait.
            DeadlineExceededError: the request was not finished within ``timeout``.
            StepFailedError: a fault ended the request.
            EngineStoppedError: the engine was closed.
        """
        return self._outputs(as_request(as_prompt(prompt), sampling_params, constraint, options), request_id)

    def chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: ConstraintInput[T] | None = None,
        request_id: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncGenerator[RequestOutput[T], None]:
        """Answer a conversation through the model's chat template. See `generate` and `ChatOptions`."""
        [(prompt, _)], rest = chats_with_options([as_chat(messages)], options)
        return self._outputs(as_request(prompt, sampling_params, constraint, rest, own=OF_CHAT), request_id)

    async def extract(
        self,
        texts: str | Iterable[str],
        output_type: ConstraintInput[T],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Unpack[ExtractionOptions[T]],
    ) -> list[Extraction[T]]:
        """Read a value of a type out of every text. See `draftline.LLM.extract`.

        At most twice ``max_num_seqs`` requests are in flight, and a full queue is waited for.
        """
        attempts = extraction_attempts(
            texts, output_type, sampling_params, options, as_chat=self.info.has_chat_template
        )
        self._engine.check_running()
        in_flight = min(2 * self.info.max_num_seqs, self.config.max_waiting)
        return await run_attempts(
            attempts, self._answer, max_in_flight=in_flight, show_progress=options.get("use_tqdm", True)
        )

    async def compile(self, constraint: ConstraintInput[Any]) -> ConstraintReport:
        """Compile a constraint ahead of its first request. See `draftline.LLM.compile`."""
        return await compile_whole(self._engine.compiler, known_constraint(constraint))

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

    @classmethod
    def _close_loaded(cls, loading: Future[Self]) -> None:
        if loading.exception() is None:
            loading.result()._engine.close()

    async def _outputs(
        self, request: GenerateRequest, request_id: str | None
    ) -> AsyncGenerator[RequestOutput[Any], None]:
        async with aclosing(self._growing(request, request_id)) as growing:
            async for accumulator in growing:
                yield accumulator.snapshot()

    async def _answer(self, request: GenerateRequest, begun: Callable[[], None]) -> RequestOutput[Any]:
        """The finished output of a request; ``begun`` is called with each update. Waits while the queue is full."""
        while True:
            try:
                async with aclosing(self._growing(request, None)) as growing:
                    async for accumulator in growing:
                        begun()
                        whole = accumulator
                return whole.result()
            except QueueFullError as error:
                await asyncio.sleep(error.retry_after_s)

    def _current_hub(self) -> Hub:
        """The hub of the running event loop: all requests of one loop share one, so that a step wakes it once."""
        loop, hub = asyncio.get_running_loop(), self._hub
        if hub is None or hub.loop is not loop:
            hub = self._hub = Hub(loop)
        return hub

    async def _compiled(self, request: GenerateRequest) -> GenerateRequest:
        """A request whose constraint is compiled, without a thread that waits for it: a program has few."""
        engine = self._engine
        engine.check_running()

        async def token_ids(chat: Chat) -> list[int]:
            return await asyncio.to_thread(tokenize, chat, engine.tokenizer, engine.info)

        try:
            return await in_time(request, compiled_ahead(engine, request, token_ids))
        except InvalidRequestError:
            return request  # its submission lists all errors

    async def _growing(self, request: GenerateRequest, request_id: str | None) -> AsyncGenerator[Accumulator, None]:
        """Run a request. Yields its accumulator after each update; leaving early cancels the request."""
        request_id = request_id or uuid.uuid4().hex
        mailbox = Mailbox(self._current_hub())
        request = await self._compiled(request)
        submission = _Submission(self._engine, request_id)
        try:
            submitted = await asyncio.to_thread(submission.submit, request, mailbox.sink)
        except (asyncio.CancelledError, GeneratorExit):
            submission.leave()  # its thread goes on
            raise
        mailbox.read_with(request_id, submitted.reader)
        accumulator = Accumulator(request_id, request, submitted.prompt_token_ids)
        deadline = mailbox.fail_in_time(request_id, request)
        try:
            async for _, update in mailbox:
                ended = accumulator.take(update)
                yield accumulator
                if ended:
                    return
        finally:
            if deadline is not None:
                deadline.cancel()
            if not submitted.reader.is_over:  # else the id may be that of a newer request
                self._engine.cancel(request_id)


class _Submission:
    """The submission of a request on a thread, which may end when its caller has been cancelled."""

    def __init__(self, engine: EngineClient, request_id: str) -> None:
        """Of a request to ``engine``."""
        self._engine = engine
        self._request_id = request_id
        self._lock = threading.Lock()
        self._submitted = self._left = False

    def submit(self, request: GenerateRequest, sink: Sink) -> Submitted:
        """Submit the request, and cancel it if it was left meanwhile. See `EngineClient.submit`."""
        submitted = self._engine.submit(self._request_id, request, sink)
        with self._lock:
            self._submitted = True
        if self._left:
            self._engine.cancel(self._request_id)
        return submitted

    def leave(self) -> None:
        """Cancel the request, now or once it is submitted. One that the engine refuses may have the name of another."""
        with self._lock:
            self._left = True
        if self._submitted:
            self._engine.cancel(self._request_id)
