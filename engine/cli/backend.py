"""Where ``generate`` and ``chat`` get their text from: an engine in this process, or a server's."""

from __future__ import annotations

import queue
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Protocol

import grpc
from rich.console import Console

from draftline.engine.client.convert import request_message, update
from draftline.engine.config import EngineConfig
from draftline.engine.errors import DraftlineError, UsageError
from draftline.engine.outputs import Failed, Update
from draftline.engine.protocol import EngineClient, GenerateRequest
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

if TYPE_CHECKING:
    from draftline.engine.threaded_engine import ThreadedEngine

CONNECT_S = 5.0
"""Seconds in which a server must be reached."""


class ServerError(DraftlineError):
    """A server could not be reached, or refused."""


class RefusedError(ServerError):
    """A server refused this request, and would refuse it again; others may do."""


class Backend(Protocol):
    """Something that generates."""

    def generate(self, request: GenerateRequest) -> Generator[Update, None, None]:
        """A request's updates as they come. Closing the iterator cancels it."""
        ...


class LocalBackend:
    """An engine in this process."""

    def __init__(self, engine: EngineClient) -> None:
        """``engine`` stays its owner's to close."""
        self._engine = engine
        self._ids = count()

    def generate(self, request: GenerateRequest) -> Generator[Update, None, None]:
        """See `Backend`."""
        name = f"cli-{next(self._ids)}"
        updates: queue.SimpleQueue[Update] = queue.SimpleQueue()

        def sink(pairs: Sequence[tuple[str, Update]]) -> None:
            for _, news in pairs:
                updates.put(news)

        self._engine.submit(name, request, sink)
        outputs = request.sampling.n
        try:
            while outputs:
                news = updates.get()
                if isinstance(news, Failed):
                    raise news.error
                outputs -= news.ends_output
                yield news
        finally:
            self._engine.cancel(name)


class RemoteBackend:
    """A server."""

    def __init__(self, channel: grpc.Channel) -> None:
        """``channel`` stays its owner's to close."""
        self._stub = InferenceServiceStub(channel)

    def generate(self, request: GenerateRequest) -> Generator[Update, None, None]:
        """See `Backend`."""
        call = self._stub.Generate(request_message(request))
        try:
            with server_errors():
                for response in call:
                    yield update(response)
        finally:
            call.cancel()


@contextmanager
def server_errors() -> Iterator[None]:
    """Turn failed calls into `ServerError`."""
    try:
        yield
    except grpc.RpcError as error:
        refused = error.code() is grpc.StatusCode.INVALID_ARGUMENT
        kind = RefusedError if refused else ServerError
        raise kind(f"the server answers {error.code().name}: {error.details()}") from error


@contextmanager
def connected(address: str, engine: EngineConfig) -> Iterator[grpc.Channel]:
    """A channel to a server.

    Raises:
        UsageError: engine options are given, which a running server has already.
        ServerError: nobody answers there.
    """
    if engine != EngineConfig():
        raise UsageError("--server: the server has its own engine; give no engine options with it")
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(address, options) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_S)
        except grpc.FutureTimeoutError:
            raise ServerError(f"no server answers at {address}") from None
        yield channel


@contextmanager
def started(config: EngineConfig) -> Iterator[ThreadedEngine]:
    """An engine in this process, closed at the end."""
    from draftline.engine.async_engine import start_engine  # loads torch, which takes seconds

    with Console(stderr=True).status(f"loading {config.model}"):
        engine = start_engine(config)
    with closing(engine):
        yield engine


@contextmanager
def backend(server: str | None, engine: EngineConfig) -> Iterator[Backend]:
    """The server's engine where one is named, else one of our own."""
    if server is None:
        with started(engine) as local:
            yield LocalBackend(local)
    else:
        with connected(server, engine) as channel:
            yield RemoteBackend(channel)
