"""``AsyncClient``: a server's engine for asyncio programs. All requests share one Session stream.

`draftline.engine.client.async_generation` says when a request is sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc
import grpc.aio
from tqdm import tqdm

from draftline.engine.client.access import call_metadata, is_grpc_address
from draftline.engine.client.async_generation import AsyncGeneration, too_late
from draftline.engine.client.channel import open_channel, refuse_fork
from draftline.engine.client.convert import constraint_message, constraint_report
from draftline.engine.client.errors import call_error
from draftline.engine.client.pace import Pacer, now
from draftline.engine.client.retry import RetryPolicy
from draftline.engine.client.session import ClientSession
from draftline.engine.client.tls import Tls
from draftline.engine.errors import (
    CallFailedError,
    DeadlineExceededError,
    DraftlineError,
    FieldViolation,
    InvalidRequestError,
    kind_of,
)
from draftline.engine.extraction.result import Extraction
from draftline.engine.extraction.task import ExtractionOptions, extraction_attempts, run_attempts
from draftline.engine.outputs import ConstraintReport, RequestOutput
from draftline.engine.params import ChatOptions, RequestOptions, SamplingParams, T
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.keywords import (
    OF_CHAT,
    ConstraintInput,
    as_request,
    as_requests,
    known_constraint,
    timeout_of,
)
from draftline.engine.request.prompt_input import (
    Conversation,
    PromptInput,
    as_prompt,
    as_prompts,
    chats_with_options,
)
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

_Answer = TypeVar("_Answer")

_CLOSED = "the client is closed"

_OPTIONS = [
    # A response may be larger than gRPC's default limit of 4 MiB.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Pings detect a server that has vanished; the server allows one every ten seconds.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The retry policy decides how long to wait, not the channel. gRPC's min_reconnect_backoff_ms is none of these: it
    # is how long a connection may take, and a busy server's TLS handshake takes longer than any backoff.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


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
        """Create a client on the event loop that will use it. It connects on its first request.

        Args:
            address: ``host:port``.
            token: the bearer token of every call. Without ``tls`` it crosses the network in plain text.
            tls: the certificates; no TLS where None.
            retry: when to send a request again; `RetryPolicy`'s defaults where None.

        Raises:
            InvalidRequestError: the address has no port or a wrong one, or is a URL; an argument has another type; a
                file of ``tls`` cannot be used; or the token has a character that no HTTP header can hold.
            CallFailedError: this process is a fork of one that has made a client.
        """
        if not is_grpc_address(address):
            raise InvalidRequestError(FieldViolation("address", f"must be host:port of a gRPC server, not {address!r}"))
        if not isinstance(tls, Tls | None):
            raise InvalidRequestError(FieldViolation("tls", f"must be Tls(...) or None, not {kind_of(tls)}"))
        if not isinstance(retry, RetryPolicy | None):
            problem = f"must be RetryPolicy(...) or None, not {kind_of(retry)}"
            raise InvalidRequestError(FieldViolation("retry", problem))
        self._metadata = call_metadata(token)
        self._channel = open_channel(address, tls, _OPTIONS)
        self._stub = InferenceServiceStub(self._channel)
        self._retry = retry or RetryPolicy()
        self._pace = Pacer()
        self._session: ClientSession | None = None
        self._running: set[AsyncGeneration[Any]] = set()
        self._asking: set[asyncio.Task[Any]] = set()
        self._closed = False

    def submit(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: ConstraintInput[T] | None = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncGeneration[T]:
        """Start one request.

        Args:
            prompt: a text, token ids, ``{"prompt": …}``, ``{"prompt_token_ids": […]}``, or a `Chat`.
            sampling_params: how its tokens are chosen, and when it ends.
            constraint: a constraint on every output. A type stands for its `Schema`.
            **options: see `RequestOptions`: speculation, priority, and timeout. The timeout is in seconds, attempts and
                waits included.

        Returns:
            The request in flight. Its errors are raised where its outputs are awaited. The ``prompt_token_ids`` of a
            text stay empty: the server tokenizes it.

        Raises:
            InvalidRequestError: an argument has a wrong type.
            CallFailedError: the client is closed, or was made before a fork.
        """
        return self._start(as_request(as_prompt(prompt), sampling_params, constraint, options))

    async def generate(
        self,
        prompts: PromptInput | Iterable[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        constraint: ConstraintInput[T] | Sequence[ConstraintInput[T] | None] | None = None,
        use_tqdm: bool = False,
        **options: Unpack[RequestOptions],
    ) -> list[RequestOutput[T]]:
        """Complete every prompt, all at once.

        Args:
            prompts: one prompt, or several. A list of ints is one prompt of token ids.
            sampling_params: for all prompts, or a list with one for each.
            constraint: a constraint on every output, or a list with one for each prompt. A type stands for its
                `Schema`.
            use_tqdm: show a progress bar on standard error.
            **options: see `submit`.

        Returns:
            The finished outputs, in the prompts' order. ``parsed`` is the value of the constraint's type.

        Raises:
            DraftlineError: the first error of any request. The other requests are cancelled.
        """
        return await self._finish(as_requests(as_prompts(prompts), sampling_params, constraint, options), use_tqdm)

    async def chat(
        self,
        messages: Conversation | Iterable[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        constraint: ConstraintInput[T] | Sequence[ConstraintInput[T] | None] | None = None,
        use_tqdm: bool = False,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput[T]]:
        """Answer one conversation, or each of several. See `generate` and `ChatOptions`."""
        chats, rest = chats_with_options(messages, options)
        return await self._finish(as_requests(chats, sampling_params, constraint, rest, own=OF_CHAT), use_tqdm)

    async def extract(
        self,
        texts: str | Iterable[str],
        output_type: ConstraintInput[T],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Unpack[ExtractionOptions[T]],
    ) -> list[Extraction[T]]:
        """Read a value of a type out of every text. See `draftline.LLM.extract`.

        At most twice the server's ``max_num_seqs`` requests are in flight. The time that the server takes to describe
        its model counts toward the timeout.

        Raises:
            InvalidRequestError: an argument for all texts is wrong.
            DraftlineError: the server does not describe its model.
        """
        timeout, asked = timeout_of(options), now()
        try:
            model = await self._model(timeout)
        except DeadlineExceededError as late:  # each text has its own error, as where its request is late
            attempts = extraction_attempts(texts, output_type, sampling_params, options, as_chat=False)
            return [Extraction(index, late, None, attempts=0) for index in range(len(attempts))]
        if timeout is not None:
            options["timeout"] = max(timeout - (now() - asked), 1e-3)
        attempts = extraction_attempts(texts, output_type, sampling_params, options, as_chat=model.has_chat_template)

        async def ask(request: GenerateRequest, begun: Callable[[], None]) -> RequestOutput[T]:
            generation: AsyncGeneration[T] = self._start(request)
            await generation.begun()
            begun()
            return await generation.result()

        return await run_attempts(
            attempts, ask, max_in_flight=2 * model.max_num_seqs, show_progress=options.get("use_tqdm", True)
        )

    async def model(self) -> pb.GetModelResponse:
        """Ask the server for its model and limits, again while it is away, as the retry policy says.

        Raises:
            DraftlineError: the server cannot be reached, or refuses the call.
        """
        return await self._model(None)

    async def _model(self, timeout: float | None) -> pb.GetModelResponse:
        return await self._ask(lambda: self._stub.GetModel(pb.GetModelRequest(), metadata=self._metadata), timeout)

    async def compile(self, constraint: ConstraintInput[Any]) -> ConstraintReport:
        """Let the server compile a constraint ahead of its first request. Returns when its last table is built.

        Raises:
            InvalidRequestError: it cannot be enforced.
            DraftlineError: the server cannot be reached, or refuses the call.
        """
        request = pb.CheckConstraintRequest(constraint=constraint_message(known_constraint(constraint)))
        answer = await self._ask(lambda: self._stub.CheckConstraint(request, metadata=self._metadata))
        return constraint_report(answer)

    async def _ask(self, call: Callable[[], Awaitable[_Answer]], timeout: float | None = None) -> _Answer:
        """The answer to a unary call, made again while the server is away, as the retry policy says. `close` ends it.

        Raises:
            DeadlineExceededError: there is none within ``timeout`` seconds.
        """
        self._check_open()
        asking = asyncio.create_task(self._answer(call, timeout))
        self._asking.add(asking)
        try:
            await asyncio.wait({asking})
        finally:
            asking.cancel()
            self._asking.discard(asking)
        if asking.cancelled():
            raise CallFailedError("the client was closed")
        return asking.result()

    async def _answer(self, call: Callable[[], Awaitable[_Answer]], timeout: float | None) -> _Answer:
        error: DraftlineError | None = None
        deadline = None if timeout is None else now() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                for attempt in count(1):
                    try:
                        return await call()
                    except grpc.aio.AioRpcError as failed:
                        error = call_error(failed)
                        left = None if deadline is None else deadline - now()
                        wait = self._retry.delay(attempt, error, time_left=left)
                        if wait is None and (left is None or self._retry.delay(1, error) is None):
                            raise error from failed
                    if wait is None:
                        raise TimeoutError  # there is no time for another attempt
                    await asyncio.sleep(wait)
        except TimeoutError:
            raise too_late(error) from error
        raise AssertionError

    def open_session(self) -> ClientSession:
        """Open a stream of its own: one request is one attempt, and its updates go to a callback.

        For load generators.

        Raises:
            CallFailedError: the client is closed, or was made before a fork.
        """
        self._check_open()
        return ClientSession(partial(self._stub.Session, metadata=self._metadata))

    async def close(self) -> None:
        """Disconnect. Calls still running fail with `CallFailedError`. Idempotent."""
        self._closed = True
        asking = list(self._asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
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

    def _check_open(self) -> None:
        refuse_fork()
        if self._closed:
            raise CallFailedError(_CLOSED)

    def _current_session(self) -> ClientSession:
        if self._session is None or self._session.has_ended:
            self._session = self.open_session()
        return self._session

    def _start(self, request: GenerateRequest) -> AsyncGeneration[Any]:
        self._check_open()
        generation: AsyncGeneration[Any] = AsyncGeneration(request, self._current_session, self._retry, self._pace)
        self._running.add(generation)
        generation.on_end(self._running.discard)
        return generation

    async def _finish(self, requests: Sequence[GenerateRequest], use_tqdm: bool) -> list[RequestOutput[Any]]:
        generations = [self._start(request) for request in requests]
        bar = tqdm(total=len(requests), desc="Prompts", unit="prompt", disable=not use_tqdm, dynamic_ncols=True)

        async def result(generation: AsyncGeneration[Any]) -> RequestOutput[Any]:
            output = await generation.result()
            bar.update()
            return output

        try:
            with bar:
                return await asyncio.gather(*map(result, generations))
        finally:
            for generation in generations:
                generation.cancel()
