"""The gRPC server: the service, health and reflection on one port, with an orderly start and end.

It listens before the model is loaded, so that a port in use is known at once, and health says NOT_SERVING until then.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
from grpc_channelz.v1 import channelz, channelz_pb2
from grpc_channelz.v1.channelz_pb2_grpc import add_ChannelzServicer_to_server
from grpc_health.v1 import health, health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from draftline.engine.errors import CannotListenError, MissingExtraError
from draftline.engine.protocol import EngineClient
from draftline.engine.server.access import Access, OpenAccess, TokenAccess
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.grpc.admin import AdminService
from draftline.engine.server.grpc.inference import InferenceService
from draftline.engine.server.grpc.interceptors import AuthenticationInterceptor, DecodeErrorInterceptor
from draftline.engine.server.grpc.reflection import add_reflection
from draftline.engine.server.state import ServerState
from draftline.engine.server.telemetry.metrics import Metrics
from draftline.engine.server.telemetry.metrics_endpoint import MetricsEndpoint
from draftline.engine.server.telemetry.reports import Observer
from draftline.engine.server.telemetry.request_log import log_request
from draftline.engine.server.tls import Certificate
from draftline.engine.streaming.mailbox import Hub
from draftline.v1 import admin_pb2, engine_pb2
from draftline.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from draftline.v1.engine_pb2_grpc import add_InferenceServiceServicer_to_server

if TYPE_CHECKING:
    from draftline.engine.server.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)

SERVICE = engine_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name

_CHANNELZ = channelz_pb2.DESCRIPTOR.services_by_name["Channelz"].full_name

_PACKAGES = ("draftline.v1", "vllm.grpc.engine")

_FLUSH_S = 0.5
"""How long the last messages of finished calls get to leave before what is still open is cut."""


class Server:
    """A server on one event loop: `start`, then `serve` an engine, then `drain`, or `abort`.

    Attributes:
        address: ``host:port`` that it listens on, once started; before, that of the configuration.
    """

    def __init__(self, config: ServerConfig) -> None:
        """A server that does not listen yet. Must be called on the event loop that will run it.

        Raises:
            CertificateError: the certificate cannot be read.
            TokenFileError: the tokens cannot be read.
            MissingExtraError: an option needs packages that are not installed.
        """
        self.address = _address(config.host, config.port)
        self._config = config
        access: Access = (
            OpenAccess(admin=config.is_local if config.admin is None else config.admin)
            if config.tokens is None
            else TokenAccess(Path(config.tokens))
        )
        self._certificate = _certificate(config)
        self._server = grpc.aio.server(
            options=_options(config),
            interceptors=[AuthenticationInterceptor(access), DecodeErrorInterceptor(_PACKAGES)],
        )
        self._health = health.aio.HealthServicer()
        self._watching: asyncio.Task[None] | None = None
        self._metrics = Metrics()
        self._metrics_endpoint: MetricsEndpoint | None = None
        self._tracing = _tracing(config)
        self._state = ServerState(config, access, Hub(asyncio.get_running_loop()), self._observers())
        add_InferenceServiceServicer_to_server(InferenceService(self._state), self._server)
        add_AdminServiceServicer_to_server(AdminService(self._state, self._metrics.registry), self._server)
        add_HealthServicer_to_server(self._health, self._server)
        add_ChannelzServicer_to_server(channelz.aio.ChannelzServicer(), self._server)
        self._services = [SERVICE, ADMIN_SERVICE, *_gateway(self._state, self._server)]
        add_reflection(self._server, [*self._services, health.SERVICE_NAME, _CHANNELZ])

    async def start(self) -> None:
        """Listen, and answer that the model is still loading.

        Raises:
            CannotListenError: the address cannot be used.
        """
        await self._report(health_pb2.HealthCheckResponse.NOT_SERVING)
        if self._config.metrics_port is not None:
            self._metrics_endpoint = MetricsEndpoint(
                self._config.metrics_host, self._config.metrics_port, self._metrics.registry
            )
        self.address = _bind(self._server, self._config, self._certificate)
        await self._server.start()

    async def serve(self, engine: EngineClient) -> None:
        """Take requests for ``engine``, and let health say so for as long as it runs."""
        self._metrics.watch(engine.stats, engine.info)
        if self._tracing is not None:
            self._tracing.serve(engine.info.model)
        self._state.serve(engine)
        await self._report(health_pb2.HealthCheckResponse.SERVING)
        self._watching = asyncio.create_task(self._watch(engine))

    async def wait_idle(self) -> None:
        """Wait until no request is running."""
        await self._state.wait_idle()

    async def drain(self) -> bool:
        """Refuse new requests, let the running ones finish up to the drain timeout, then stop. False: some did not."""
        self._state.drain()
        self._stop_watching()
        await self._health.enter_graceful_shutdown()
        finished = True
        try:
            async with asyncio.timeout(self._config.drain_timeout):
                await self.wait_idle()
        except TimeoutError:
            finished = False
        await self._server.stop(_FLUSH_S)
        await self._close()
        return finished

    async def abort(self) -> None:
        """Stop at once, whatever is running. Harmless after `drain`."""
        self._stop_watching()
        await self._server.stop(None)
        await self._close()

    async def _close(self) -> None:
        """End what runs beside the calls."""
        if self._metrics_endpoint is not None:
            await asyncio.to_thread(self._metrics_endpoint.close)
            self._metrics_endpoint = None
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)
            self._tracing = None

    def _observers(self) -> list[Observer]:
        observers: list[Observer] = [self._metrics.observe]
        if self._config.log_requests:
            observers.append(log_request)
        if self._tracing is not None:
            observers.append(self._tracing.observe)
        return observers

    async def _watch(self, engine: EngineClient) -> None:
        """Let health follow an engine that ends by itself; it refuses requests already."""
        await asyncio.wait([asyncio.wrap_future(engine.stopped)])
        await self._report(health_pb2.HealthCheckResponse.NOT_SERVING)

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None  # its frame has this server, which must be gone before its loop is

    async def _report(self, status: int) -> None:
        for service in ("", *self._services):
            await self._health.set(service, status)


def _tracing(config: ServerConfig) -> Tracing | None:
    if config.otlp_endpoint is None:
        return None
    try:
        from draftline.engine.server.telemetry.tracing import Tracing  # an extra, which others do without
    except ImportError as error:
        raise MissingExtraError("otlp_endpoint", "tracing") from error
    return Tracing(config.otlp_endpoint)


def _gateway(state: ServerState, server: grpc.aio.Server) -> list[str]:
    """Add the gateway's service, if it is wanted: its name."""
    if not state.config.gateway:
        return []
    try:
        from smg_grpc_proto.generated.vllm_engine_pb2_grpc import add_VllmEngineServicer_to_server

        from draftline.engine.server.gateway.service import GATEWAY_SERVICE, GatewayService  # an extra, as above
    except ImportError as error:
        raise MissingExtraError("gateway", "gateway") from error
    add_VllmEngineServicer_to_server(GatewayService(state), server)
    return [GATEWAY_SERVICE]


def _certificate(config: ServerConfig) -> Certificate | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    authorities = None if config.tls_client_ca is None else Path(config.tls_client_ca)
    return Certificate(Path(config.tls_cert), Path(config.tls_key), authorities)


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        # Without this a second server on the same port would silently share its connections.
        ("grpc.so_reuseport", 0),
        ("grpc.enable_channelz", 1),
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


def _bind(server: grpc.aio.Server, config: ServerConfig, certificate: Certificate | None) -> str:
    """Listen, and return the address with the port that it got."""
    address = _address(config.host, config.port)
    try:
        # gRPC's own error does not say why, so ask the system first.
        family, kind, protocol, _, where = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
        if certificate is None:
            return _address(config.host, server.add_insecure_port(address))
        return _address(config.host, server.add_secure_port(address, certificate.credentials()))
    except OSError as error:
        raise CannotListenError(f"cannot listen on {address}: {error.strerror}") from error
    except RuntimeError as error:
        raise CannotListenError(f"cannot listen on {address}: {error}") from error
