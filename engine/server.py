"""The gRPC server: the service, health and reflection on one port, with an orderly start and end.

It listens before the model is loaded, so that a port in use is known at once, and health says NOT_SERVING until then.
"""

from __future__ import annotations

import asyncio
import logging
import socket

import grpc.aio
from grpc_health.v1 import health, health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from draftline.engine.client import EngineClient
from draftline.engine.errors import DraftlineError
from draftline.engine.gate import Gate
from draftline.engine.mailbox import Hub
from draftline.engine.reflection import add_reflection
from draftline.engine.server_config import ServerConfig
from draftline.engine.service import InferenceService
from draftline.v1 import engine_pb2
from draftline.v1.engine_pb2_grpc import add_InferenceServiceServicer_to_server

logger = logging.getLogger(__name__)

SERVICE = engine_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name

_FLUSH_S = 0.5
"""How long the last messages of finished calls get to leave before what is still open is cut."""


class CannotListenError(DraftlineError):
    """The server's address cannot be listened on; the message says which and why."""


class Server:
    """A server on one event loop: `start`, then `serve` an engine, then `drain`, or `abort`.

    Attributes:
        address: ``host:port`` that it listens on, once started; before, that of the configuration.
    """

    def __init__(self, config: ServerConfig) -> None:
        """A server that does not listen yet. Must be called on the event loop that will run it."""
        self.address = _address(config.host, config.port)
        self._config = config
        self._gate = Gate()
        self._server = grpc.aio.server(options=_options(config))
        self._health = health.aio.HealthServicer()
        self._watching: asyncio.Task[None] | None = None
        hub = Hub(asyncio.get_running_loop())
        add_InferenceServiceServicer_to_server(InferenceService(self._gate, hub, config), self._server)
        add_HealthServicer_to_server(self._health, self._server)
        add_reflection(self._server, [SERVICE, health.SERVICE_NAME])

    async def start(self) -> None:
        """Listen, and answer that the model is still loading.

        Raises:
            CannotListenError: the address cannot be used.
        """
        await self._report(health_pb2.HealthCheckResponse.NOT_SERVING)
        self.address = _bind(self._server, self._config)
        await self._server.start()

    async def serve(self, engine: EngineClient) -> None:
        """Take requests for ``engine``, and let health say so for as long as it runs."""
        self._gate.open(engine)
        await self._report(health_pb2.HealthCheckResponse.SERVING)
        self._watching = asyncio.create_task(self._watch(engine))

    async def idle(self) -> None:
        """Wait until no request is running."""
        await self._gate.wait_empty()

    async def drain(self) -> bool:
        """Refuse new requests, let the running ones finish up to the drain timeout, then stop. False: some did not."""
        self._gate.close()
        self._stop_watching()
        await self._health.enter_graceful_shutdown()
        finished = True
        try:
            async with asyncio.timeout(self._config.drain_timeout):
                await self.idle()
        except TimeoutError:
            finished = False
        await self._server.stop(_FLUSH_S)
        return finished

    async def abort(self) -> None:
        """Stop at once, whatever is running. Harmless after `drain`."""
        self._stop_watching()
        await self._server.stop(None)

    async def _watch(self, engine: EngineClient) -> None:
        """Let health follow an engine that ends by itself; it refuses requests already."""
        await asyncio.wait([asyncio.wrap_future(engine.stopped)])
        await self._report(health_pb2.HealthCheckResponse.NOT_SERVING)

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _report(self, status: int) -> None:
        for service in ("", SERVICE):
            await self._health.set(service, status)


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        # Without this a second server on the same port would silently share its connections.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.max_request_mib << 20),
        # A slow reader's merged deltas and long prompts' log-probabilities are bounded by what was asked for.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", config.max_streams),
        # Clients of quiet streams (a long prefill, an idle Session) may ping. Not the `min_recv_…` spelling: it is
        # ignored, and such streams then die of "too many pings".
        ("grpc.http2.min_ping_interval_without_data_ms", round(config.min_ping_interval * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client that vanished without closing its connection keeps its requests running until this finds out.
        ("grpc.keepalive_time_ms", round(config.keepalive * 1000)),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(server: grpc.aio.Server, config: ServerConfig) -> str:
    """Listen, and return the address with the port that it got."""
    address = _address(config.host, config.port)
    try:
        # gRPC's own error does not say why, so ask the system first.
        family, kind, protocol, _, where = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
        return _address(config.host, server.add_insecure_port(address))
    except OSError as error:
        raise CannotListenError(f"cannot listen on {address}: {error.strerror}") from error
    except RuntimeError as error:
        raise CannotListenError(f"cannot listen on {address}: {error}") from error
