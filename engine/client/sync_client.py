"""``Client``: `AsyncClient` for programs without an event loop. It has one of its own, on a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from draftline.engine.client.async_client import AsyncClient, AsyncGeneration, Tls
from draftline.engine.client.retry import RetryPolicy
from draftline.engine.errors import CallFailedError
from draftline.engine.outputs import RequestOutput
from draftline.engine.params import SamplingParams
from draftline.engine.protocol import Chat
from draftline.engine.request.prompt_input import Message, PromptInput
from draftline.v1 import engine_pb2 as pb

_T = TypeVar("_T")


class _Loop:
    """An event loop on a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="draftline-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Its result, or its error. Leaving early, as by Ctrl-C, cancels it."""
        if self._loop.is_closed():
            work.close()
            raise CallFailedError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Generation:
    """One request on its way: iterate over its outputs so far, or wait for its `result`."""

    def __init__(self, loop: _Loop, generation: AsyncGeneration) -> None:
        """`Client.submit` makes these."""
        self._loop = loop
        self._generation = generation

    def __iter__(self) -> Iterator[RequestOutput]:
        """The outputs so far, whenever there are new tokens. Leaving the iteration early cancels the request."""
        outputs = aiter(self._generation)
        try:
            while (output := self._loop.run(_next(outputs))) is not None:
                yield output
        finally:
            self.cancel()

    def result(self) -> RequestOutput:
        """The finished request.

        Raises:
            DraftlineError: what ended it.
        """
        return self._loop.run(self._generation.result())

    def cancel(self) -> None:
        """End the request; its unfinished outputs then have the finish reason ``cancelled``. Of no effect if it is over."""
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
        """A client that connects when it is first used; see `AsyncClient`."""

        async def made() -> AsyncClient:
            return AsyncClient(address, token=token, tls=tls, retry=retry)

        self._loop = _Loop()
        try:
            self._client = self._loop.run(made())
        except BaseException:
            self._loop.close()
            raise

    def submit(
        self, prompt: PromptInput | Chat, sampling_params: SamplingParams | None = None, **options: Any
    ) -> Generation:
        """Start one request; see `AsyncClient.submit`."""

        async def submitted() -> AsyncGeneration:
            return self._client.submit(prompt, sampling_params, **options)

        return Generation(self._loop, self._loop.run(submitted()))

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Complete every prompt, all at once; see `AsyncClient.generate`."""
        return self._loop.run(self._client.generate(prompts, sampling_params, **options))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list of them; see `AsyncClient.chat`."""
        return self._loop.run(self._client.chat(messages, sampling_params, **options))

    def model(self) -> pb.GetModelResponse:
        """What the server serves, and its limits; see `AsyncClient.model`."""
        return self._loop.run(self._client.model())

    def close(self) -> None:
        """Cancel what is running, and disconnect. Idempotent."""
        try:
            self._loop.run(self._client.close())
        except CallFailedError:
            return  # it was closed before
        self._loop.close()

    def __enter__(self) -> Self:
        """The client."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()


async def _next(outputs: Any) -> RequestOutput | None:
    return await anext(outputs, None)


async def _call(function: Any) -> None:
    function()
