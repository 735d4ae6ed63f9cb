"""Where ``generate`` and ``chat`` run: on an engine in this process, or on a server."""

from __future__ import annotations

import queue
import socket
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Protocol

import grpc
from rich.console import Console
from typing_extensions import override

from draftline.engine.cli.connection import Connection, check_no_engine_options
from draftline.engine.cli.models import find_models
from draftline.engine.client.access import is_grpc_address
from draftline.engine.client.convert import request_message, with_stop
from draftline.engine.client.convert import update as update_of
from draftline.engine.config import EngineConfig
from draftline.engine.errors import DraftlineError
from draftline.engine.outputs import Failed, Update
from draftline.engine.protocol import EngineClient, EngineInfo, GenerateRequest
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

if TYPE_CHECKING:
    from draftline.engine.threaded_engine import ThreadedEngine

CONNECT_S = 5.0
"""Timeout of the connection to a server, in seconds."""


class ServerError(DraftlineError):
    """A server could not be reached, or refused a call."""


class RefusedError(ServerError):
    """A server found a request invalid. Other requests may be valid."""


class Backend(Protocol):
    """Something that generates."""

    def description(self) -> str:
        """Describe the model and where it runs: ``smollm2 on cpu, float32``."""
        ...

    def generate(self, request: GenerateRequest) -> Generator[Update, None, None]:
        """Yield a request's updates as they come. Closing the iterator cancels the request."""
        ...


class LocalBackend(Backend):
    """An engine in this process."""

    def __init__(self, engine: EngineClient) -> None:
        """Use ``engine``, which its owner closes."""
        self._engine = engine
        self._ids = count()

    @override
    def description(self) -> str:
        return describe(self._engine.info)

    @override
    def generate(self, request: GenerateRequest) -> Generator[Update, None, None]:
        name = f"cli-{next(self._ids)}"
        updates: queue.SimpleQueue[Update] = queue.SimpleQueue()

        def sink(pairs: Sequence[tuple[str, Update]]) -> None:
            for _, update in pairs:
                updates.put(update)

        reader = self._engine.submit(name, request, sink).reader
        try:
            while not reader.is_over:
                for update in reader.read(updates.get()):
                    if isinstance(update, Failed):
                        raise update.error
                    yield update
        finally:
            self._engine.cancel(name)


class RemoteBackend(Backend):
    """A server."""

    def __init__(self, channel: grpc.Channel) -> None:
        """Use ``channel``, which its owner closes."""
        self._stub = InferenceServiceStub(channel)

    @override
    def description(self) -> str:
        with server_errors():
            return describe(self._stub.GetModel(pb.GetModelRequest()))

    @override
    def generate(self, request: GenerateRequest) -> Generator[Update, None, None]:
        call = self._stub.Generate(request_message(request))
        try:
            with server_errors():
                for response in call:
                    yield with_stop(update_of(response), request.sampling)
        finally:
            call.cancel()


def describe(model: EngineInfo | pb.GetModelResponse) -> str:
    """Describe a model and where it runs, for people."""
    return f"{model.model} on {model.device}, {model.dtype}"


@contextmanager
def server_errors() -> Iterator[None]:
    """Raise failed calls as `ServerError`."""
    try:
        yield
    except grpc.RpcError as error:
        refused = error.code() is grpc.StatusCode.INVALID_ARGUMENT
        kind = RefusedError if refused else ServerError
        raise kind(f"the server answers {error.code().name}: {error.details()}") from error


@contextmanager
def connected(address: str, engine: EngineConfig, connection: Connection) -> Iterator[grpc.Channel]:
    """Open a channel to a server, whose calls carry the connection's token.

    Raises:
        UsageError: engine options are given with it (a running server has its own), or a file cannot be used.
        ServerError: the address is none, or no server answers at it, or not with or without TLS.
    """
    check_no_engine_options(engine)
    if not is_grpc_address(address):
        raise ServerError(f"{address} is no address of a gRPC server: give host:port")
    with connection.channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_S)
        except grpc.FutureTimeoutError:
            raise ServerError(_unreachable(address, connection)) from None
        yield grpc.intercept_channel(channel, connection.token_interceptor())


def _unreachable(address: str, connection: Connection) -> str:
    """Why a channel does not become ready: gRPC does not say."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S):
            pass
    except (OSError, ValueError):
        return f"no server answers at {address}"
    if connection.uses_tls:
        return f"{address} is open, but TLS fails: it serves plaintext, or --ca or --client-cert do not fit its certificate"
    return f"{address} is open, but does not answer in plaintext: it needs --tls, perhaps, or is no gRPC server"


@contextmanager
def started(config: EngineConfig) -> Iterator[ThreadedEngine]:
    """Start an engine in this process, and close it at the end.

    Raises:
        ModelLoadError: the model cannot be found or loaded.
    """
    find_models(config)
    from draftline.engine.threaded_engine import start_engine  # imports torch, which takes seconds

    with Console(stderr=True).status(f"loading {config.model}"):
        engine = start_engine(config)
    with closing(engine):
        yield engine


@contextmanager
def backend(server: str | None, engine: EngineConfig, connection: Connection) -> Iterator[Backend]:
    """Use the server where one is named, else an engine in this process.

    Raises:
        UsageError: options of a connection are given without a server.
    """
    if server is None:
        connection.check_unset()
        with started(engine) as local:
            yield LocalBackend(local)
    else:
        with connected(server, engine, connection) as channel:
            yield RemoteBackend(channel)
