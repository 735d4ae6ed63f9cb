"""``AsyncClient``: a server's engine for asyncio programs. All requests share one Session stream.

A request that was refused because the queue is full, or because the server is away, is tried again as long as nothing of
its answer has come; what the caller sees is the one request.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from draftline.engine.client.errors import call_error
from draftline.engine.client.retry import RetryPolicy
from draftline.engine.client.session import ClientSession
from draftline.engine.errors import CallFailedError, DeadlineExceededError
from draftline.engine.outputs import Failed, Finished, RequestOutput, Update
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.protocol import Chat, GenerateRequest, Prompt
from draftline.engine.request.prompt_input import Message, PromptInput, as_chats, as_prompt, as_prompts, per_prompt
from draftline.engine.streaming.accumulator import Accumulator
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

_OPTIONS = [
    # What a request asked for may be larger than gRPC's default of 4 MiB.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A server that has vanished is found out; the server allows a ping every ten seconds.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The retry policy decides how long to wait, not the channel.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]

_CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Tls:
    """How a client and a server prove who they are; the files are PEM.

    Attributes:
        ca: authorities that may have issued the server's certificate; those that gRPC knows where unset.
        cert: the client's own certificate chain, where the server asks for one.
        key: its private key.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel. Reads the files."""
        ca, cert, key = (None if path is None else Path(path).read_bytes() for path in (self.ca, self.cert, self.key))
        return grpc.ssl_channel_credentials(ca, key, cert)


class AsyncGeneration:
    """One request on its way: iterate over its outputs so far, or await its `result`."""

    def __init__(self, request: GenerateRequest, session: Callable[[], ClientSession], retry: RetryPolicy) -> None:
        """Submit ``request``; `AsyncClient.submit` makes these.

        Args:
            request: what is asked for.
            session: the client's stream, as it is now.
            retry: when to try again.
        """
        prompt = request.prompt
        ids = [] if isinstance(prompt, str | Chat) else list(prompt)
        text = prompt if isinstance(prompt, str) else None
        self._request = request
        self._session = session
        self._retry = retry
        self._accumulator = Accumulator("", text, ids, request.sampling.n)
        self._deadline = _now() + (math.inf if request.timeout_s is None else request.timeout_s)
        self._has_news = asyncio.Event()
        self._answered = False
        self._stop: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._cancel_attempt: Callable[[], None] | None = None
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._over)

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        """The outputs so far, whenever there are new tokens; a slow reader sees fewer, larger steps.

        Leaving the iteration early cancels the request. One iteration at a time.
        """
        try:
            while not self._task.done():
                await self._has_news.wait()
                self._has_news.clear()
                if self._task.done():
                    break
                if self._answered:
                    # Looked at before it is handed out: more may come while the reader is at it.
                    output = self._accumulator.snapshot()
                    yield output
                    if output.finished:
                        return
            yield await self.result()
        finally:
            self.cancel()

    async def result(self) -> RequestOutput:
        """The finished request. Where waiting for it is cancelled, so is the request.

        Raises:
            DraftlineError: what ended it.
        """
        try:
            await asyncio.wait({self._task})
        finally:
            self.cancel()
        return self._task.result()

    def cancel(self) -> None:
        """End the request; its unfinished outputs then have the finish reason ``cancelled``. Of no effect if it is over."""
        self._end(None)

    def fail(self, error: Exception) -> None:
        """End the request with an error of the client's."""
        self._end(error)

    def on_end(self, tell: Callable[[AsyncGeneration], None]) -> None:
        """Call ``tell`` when it is over."""
        self._task.add_done_callback(lambda _: tell(self))

    def _end(self, error: Exception | None) -> None:
        if self._task.done() or self._stop.done():
            return
        self._stop.set_result(error)
        if error is None and self._cancel_attempt is not None:
            self._cancel_attempt()  # and the server tells how far it came

    async def _run(self) -> RequestOutput:
        for attempt in count(1):
            error = await self._attempt()
            if error is None:
                return self._accumulator.result()
            wait = None if self._answered else self._retry.delay(attempt, error)
            if wait is None:
                raise error
            if _now() + wait >= self._deadline:
                raise DeadlineExceededError("the request's time does not suffice for another attempt") from error
            await asyncio.wait({self._stop}, timeout=wait)
            if self._stop.done():
                return self._stopped()
        raise AssertionError

    async def _attempt(self) -> Exception | None:
        """Submit it once: what ended it, or None where it was finished."""
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        left = self._deadline - _now()
        request = self._request if math.isinf(left) else replace(self._request, timeout_s=max(left, 1e-3))
        session = self._session()
        name = session.submit(request, partial(self._take, ended))
        self._cancel_attempt = partial(session.cancel, name)
        try:
            if self._stop.done():
                self._cancel_attempt()
            async with asyncio.timeout(None if math.isinf(left) else left):
                while not ended.done():
                    await asyncio.wait(
                        {ended, *([] if self._stop.done() else [self._stop])}, return_when="FIRST_COMPLETED"
                    )
                    if self._stop.done() and (error := self._stop.result()) is not None:
                        return error
            return ended.result()
        except TimeoutError:
            return DeadlineExceededError("the request's time was over before it was finished")
        finally:
            self._cancel_attempt = None
            if ended.done():
                session.over(name)
            else:
                session.forget(name)

    def _take(self, ended: asyncio.Future[Exception | None], news: Update) -> None:
        if ended.done():
            return
        if isinstance(news, Failed):
            ended.set_result(news.error)
            return
        self._answered = True
        if self._accumulator.take(self._with_stop(news)):
            ended.set_result(None)
        self._has_news.set()

    def _with_stop(self, news: Update) -> Update:
        """An end that says whether a token or a text stopped it, which is not in the message: the request tells."""
        if not isinstance(news, Finished):
            return news
        sampling, matched = self._request.sampling, news.matched_stop
        by_token = matched not in sampling.stop and matched.isdecimal() and int(matched) in sampling.stop_token_ids
        return replace(news, stopped_by_token=by_token)

    def _stopped(self) -> RequestOutput:
        """How it ends where it is stopped between two attempts."""
        if (error := self._stop.result()) is not None:
            raise error
        whole = self._accumulator.result()
        for output in whole.outputs:
            output.finish_reason = _CANCELLED
        self._answered = True
        return whole

    def _over(self, task: asyncio.Task[RequestOutput]) -> None:
        if not task.cancelled():
            task.exception()  # so that one which nobody awaits is not complained of
        self._has_news.set()


class AsyncClient:
    """A client of one server, on one event loop.

    Example:
        >>> async with AsyncClient("gpu7:50051", tls=Tls("ca.pem"), token="5kx2…") as client:
        ...     async for output in client.submit("The sky is", SamplingParams(max_tokens=8), timeout=30):
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
        """A client that connects when it is first used. Must be made on the event loop that will use it.

        Args:
            address: ``host:port``.
            token: the bearer token to call with. Without ``tls`` anyone on the way can read it.
            tls: plaintext where it is None.
            retry: whether and when to try again.
        """
        self._channel = (
            grpc.aio.insecure_channel(address, _OPTIONS)
            if tls is None
            else grpc.aio.secure_channel(address, tls.credentials(), _OPTIONS)
        )
        self._stub = InferenceServiceStub(self._channel)
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._retry = retry or RetryPolicy()
        self._session: ClientSession | None = None
        self._running: set[AsyncGeneration] = set()
        self._closed = False

    def submit(
        self,
        prompt: PromptInput | Chat,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        speculation: Speculation | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> AsyncGeneration:
        """Start one request.

        Args:
            prompt: a text, token ids, ``{"prompt": …}``, ``{"prompt_token_ids": […]}``, or a `Chat`.
            sampling_params: how its tokens are chosen and when it ends.
            constraint: what the output must match.
            speculation: how it is drafted ahead.
            priority: higher runs first.
            timeout: seconds that it may take, attempts and waiting included; then it fails with DeadlineExceededError.

        Returns:
            The request on its way. A text's ``prompt_token_ids`` stay empty: the server tokenizes it.
        """
        if self._closed:
            raise CallFailedError("the client is closed")
        sampling = sampling_params or SamplingParams()
        request = GenerateRequest(
            as_prompt(prompt), sampling, constraint, speculation or Speculation(), priority, timeout
        )
        generation = AsyncGeneration(request, self._current_session, self._retry)
        self._running.add(generation)
        generation.on_end(self._running.discard)
        return generation

    async def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Complete every prompt, all at once; see `LLM.generate`, and `submit` for the options.

        Returns:
            The finished outputs, in the prompts' order.

        Raises:
            DraftlineError: the first error of any; the others are cancelled.
        """
        return await self._all(as_prompts(prompts), sampling_params, options)

    async def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list of them. See `generate`."""
        return await self._all(as_chats(messages), sampling_params, options)

    async def model(self) -> pb.GetModelResponse:
        """What the server serves, and its limits.

        Raises:
            DraftlineError: it cannot be reached, or refuses.
        """
        try:
            return await self._stub.GetModel(pb.GetModelRequest(), metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise call_error(error) from error

    async def close(self) -> None:
        """Cancel what is running, which fails with CallFailedError, and disconnect. Idempotent."""
        self._closed = True
        running = list(self._running)
        for generation in running:
            generation.fail(CallFailedError("the client was closed"))
        await asyncio.gather(*(generation.result() for generation in running), return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        """The client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    def _current_session(self) -> ClientSession:
        if self._session is None or self._session.is_over:
            self._session = ClientSession(partial(self._stub.Session, metadata=self._metadata))
        return self._session

    async def _all(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        options: Mapping[str, Any],
    ) -> list[RequestOutput]:
        each = zip(prompts, per_prompt(sampling_params, len(prompts)), strict=True)
        generations = [self.submit(prompt, sampling, **options) for prompt, sampling in each]
        try:
            return await asyncio.gather(*(generation.result() for generation in generations))
        finally:
            for generation in generations:
                generation.cancel()


def _now() -> float:
    return asyncio.get_running_loop().time()
