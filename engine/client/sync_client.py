"""``Client``: `AsyncClient` for programs without an event loop. It runs one on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from draftline.engine.client.async_client import AsyncClient
from draftline.engine.client.async_generation import AsyncGeneration
from draftline.engine.client.channel import refuse_fork
from draftline.engine.client.retry import RetryPolicy
from draftline.engine.client.tls import Tls
from draftline.engine.errors import CallFailedError
from draftline.engine.extraction.result import Extraction
from draftline.engine.extraction.task import ExtractionOptions
from draftline.engine.outputs import ConstraintReport, RequestOutput
from draftline.engine.params import ChatOptions, RequestOptions, SamplingParams, T
from draftline.engine.request.keywords import ConstraintInput
from draftline.engine.request.prompt_input import Conversation, PromptInput
from draftline.v1 import engine_pb2 as pb

_Result = TypeVar("_Result")

_CLOSING_S = 1.0
"""The longest wait for gRPC's tasks at the end of a loop. They take milliseconds."""


class _Loop:
    """An event loop on a thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # work that comes between the stop and the end of the loop would never run
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="draftline-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Wait for a coroutine's result. Leaving early, as by Ctrl-C, cancels it.

        Raises:
            CallFailedError: the loop is closed, or was closed meanwhile; or its thread is missing, in a fork.
        """
        try:
            refuse_fork()  # before the lock, which a thread of the parent may have
            with self._lock:
                if self._loop.is_closed():
                    raise CallFailedError("the client is closed")
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except CallFailedError:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:  # by `close`
            raise CallFailedError("the client was closed") from None
        finally:
            future.cancel()

    def close(self) -> None:
        """Let what runs end, or cancel it, so that no thread waits for it for ever. Then end the thread."""
        with self._lock:
            if self._loop.is_closed():
                return
            asyncio.run_coroutine_threadsafe(_end_others(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Generation(Generic[T]):
    """One request in flight: iterate over its outputs so far, or wait for its `result`."""

    def __init__(self, loop: _Loop, generation: AsyncGeneration[T]) -> None:
        """`Client.submit` makes these."""
        self._loop = loop
        self._generation = generation

    def __iter__(self) -> Iterator[RequestOutput[T]]:
        """Yield the outputs so far whenever there are new tokens. Leaving the iteration early cancels the request."""
        outputs = aiter(self._generation)
        try:
            while (output := self._loop.run(_next(outputs))) is not None:
                yield output
        finally:
            self.cancel()

    def result(self) -> RequestOutput[T]:
        """Wait for the finished request.

        Raises:
            DraftlineError: the error that ended the request.
        """
        return self._loop.run(self._generation.result())

    def cancel(self) -> None:
        """End the request: its unfinished outputs get the finish reason ``cancelled``. No effect after the end."""
        with suppress(CallFailedError):  # the client is closed: the request has ended
            self._loop.run(_call(self._generation.cancel))


class Client:
    """A client of one server. Thread-safe.

    Example:
        >>> with Client("127.0.0.1:50051") as client:
        ...     for output in client.submit("The sky is", SamplingParams(max_tokens=8), timeout=30):
        ...         print(output.outputs[0].text)
    """

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        token: str | None = None,
        tls: Tls | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Create a client. It connects on its first request. See `AsyncClient` for the arguments."""

        async def create() -> AsyncClient:
            return AsyncClient(address, token=token, tls=tls, retry=retry)

        self._loop = _Loop()
        try:
            self._client = self._loop.run(create())
        except BaseException:
            self._loop.close()
            raise

    def submit(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: ConstraintInput[T] | None = None,
        **options: Unpack[RequestOptions],
    ) -> Generation[T]:
        """Start one request. See `AsyncClient.submit`."""

        async def submit() -> AsyncGeneration[T]:
            return self._client.submit(prompt, sampling_params, constraint=constraint, **options)

        return Generation(self._loop, self._loop.run(submit()))

    def generate(
        self,
        prompts: PromptInput | Iterable[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        constraint: ConstraintInput[T] | Sequence[ConstraintInput[T] | None] | None = None,
        use_tqdm: bool = False,
        **options: Unpack[RequestOptions],
    ) -> list[RequestOutput[T]]:
        """Complete every prompt, all at once. See `AsyncClient.generate`."""
        return self._loop.run(
            self._client.generate(prompts, sampling_params, constraint=constraint, use_tqdm=use_tqdm, **options)
        )

    def chat(
        self,
        messages: Conversation | Iterable[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        constraint: ConstraintInput[T] | Sequence[ConstraintInput[T] | None] | None = None,
        use_tqdm: bool = False,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput[T]]:
        """Answer one conversation, or each of several. See `AsyncClient.chat`."""
        return self._loop.run(
            self._client.chat(messages, sampling_params, constraint=constraint, use_tqdm=use_tqdm, **options)
        )

    def extract(
        self,
        texts: str | Iterable[str],
        output_type: ConstraintInput[T],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Unpack[ExtractionOptions[T]],
    ) -> list[Extraction[T]]:
        """Read a value of a type out of every text. See `AsyncClient.extract`."""
        return self._loop.run(self._client.extract(texts, output_type, sampling_params, **options))

    def compile(self, constraint: ConstraintInput[Any]) -> ConstraintReport:
        """Let the server compile a constraint ahead of its first request. See `AsyncClient.compile`."""
        return self._loop.run(self._client.compile(constraint))

    def model(self) -> pb.GetModelResponse:
        """Ask the server for its model and limits. See `AsyncClient.model`."""
        return self._loop.run(self._client.model())

    def close(self) -> None:
        """Disconnect. Calls still running fail with `CallFailedError`. Idempotent."""
        try:
            self._loop.run(self._client.close())
        except CallFailedError:
            return  # closed before
        self._loop.close()

    def __enter__(self) -> Self:
        """The client."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()


async def _next(outputs: Any) -> RequestOutput[Any] | None:
    return await anext(outputs, None)


async def _call(function: Any) -> None:
    function()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    # gRPC waits in tasks for the ends of cancelled calls. An end that came after the loop's would be an error in the
    # log of another client's loop, which delivers the events of all.
    if others:
        _, others = await asyncio.wait(others, timeout=_CLOSING_S)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
