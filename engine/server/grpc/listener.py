"""``GrpcListener``: the gRPC face. One port with the API, the gateway's protocol, health, reflection and channelz."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from grpc_channelz.v1 import channelz, channelz_pb2
from grpc_channelz.v1.channelz_pb2_grpc import add_ChannelzServicer_to_server
from grpc_health.v1.health import SERVICE_NAME
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from prometheus_client import CollectorRegistry, Counter
from typing_extensions import override

from draftline.engine.errors import CannotListenError, MissingExtraError
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.grpc.admin import AdminService
from draftline.engine.server.grpc.credentials import server_credentials
from draftline.engine.server.grpc.health import HealthService
from draftline.engine.server.grpc.inference import InferenceService
from draftline.engine.server.grpc.interceptors import AuthenticationInterceptor, SingleRequestInterceptor
from draftline.engine.server.grpc.reflection import add_reflection
from draftline.engine.server.listener import Listener, check_can_listen, format_address
from draftline.engine.server.state import ServerState
from draftline.engine.server.tls import Certificate
from draftline.v1 import admin_pb2, engine_pb2
from draftline.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from draftline.v1.engine_pb2_grpc import add_InferenceServiceServicer_to_server

SERVICE = engine_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name

_UNLIMITED = 2**31 - 1

_CHANNELZ = channelz_pb2.DESCRIPTOR.services_by_name["Channelz"].full_name


class GrpcListener(Listener):
    """The gRPC server of one event loop."""

    def __init__(
        self, state: ServerState, registry: CollectorRegistry, refusals: Counter, certificate: Certificate | None
    ) -> None:
        """A server that does not listen yet.

        Args:
            state: the state of the whole server.
            registry: collects the metrics that AdminService shows.
            refusals: counts the calls that are refused for their token, by code.
            certificate: for TLS; None serves plaintext.

        Raises:
            MissingExtraError: the gateway's protocol is wanted, but its messages are not installed.
        """
        self._config = state.config
        self._certificate = certificate
        self._address = format_address(state.config.host, state.config.port)
        interceptors = [AuthenticationInterceptor(state.access, refusals), SingleRequestInterceptor()]
        self._server = grpc.aio.server(options=_options(state.config), interceptors=interceptors)
        add_InferenceServiceServicer_to_server(InferenceService(state), self._server)
        add_AdminServiceServicer_to_server(AdminService(state, registry), self._server)
        add_ChannelzServicer_to_server(channelz.aio.ChannelzServicer(), self._server)
        services = [SERVICE, ADMIN_SERVICE]
        if state.config.gateway:
            services.append(_add_gateway(state, self._server))
        add_HealthServicer_to_server(HealthService(state, services), self._server)
        add_reflection(self._server, [*services, SERVICE_NAME, _CHANNELZ])

    @property
    @override
    def address(self) -> str:
        return self._address

    @property
    @override
    def connections(self) -> int:
        request = channelz_pb2.GetServersRequest()
        unused: Any = None  # the servicer's context
        sockets = 0
        for server in channelz.ChannelzServicer.GetServers(request, unused).server:
            of_server = channelz_pb2.GetServerSocketsRequest(server_id=server.ref.server_id)
            sockets += len(channelz.ChannelzServicer.GetServerSockets(of_server, unused).socket_ref)
        return sockets

    @override
    async def start(self) -> None:
        host, port = self._config.host, self._config.port
        check_can_listen(host, port)  # gRPC's own error does not say why it cannot
        address = format_address(host, port)
        try:
            bound_port = (
                self._server.add_insecure_port(address)
                if self._certificate is None
                else self._server.add_secure_port(address, server_credentials(self._certificate))
            )
        except RuntimeError as error:
            raise CannotListenError(f"cannot listen on {address}: {error}") from error
        self._address = format_address(host, bound_port)
        starting = asyncio.ensure_future(self._server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting  # a server that is cancelled while it starts cannot be stopped
            raise

    @override
    async def stop(self, grace_s: float | None) -> None:
        await self._server.stop(grace_s)


def _add_gateway(state: ServerState, server: grpc.aio.Server) -> str:
    """Add the gateway's service to ``server``. Returns the service's name."""
    try:
        from smg_grpc_proto.generated.vllm_engine_pb2_grpc import add_VllmEngineServicer_to_server

        from draftline.engine.server.gateway.service import GATEWAY_SERVICE, GatewayService  # an optional dependency
    except ImportError as error:
        raise MissingExtraError("gateway", "gateway") from error
    add_VllmEngineServicer_to_server(GatewayService(state), server)
    return GATEWAY_SERVICE


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        # Otherwise a second server on the same port would silently share its connections.
        ("grpc.so_reuseport", 0),
        ("grpc.enable_channelz", 1),
        ("grpc.max_receive_message_length", config.max_request_mib << 20),
        # The request bounds the size of its responses: merged deltas of a slow reader, log-probabilities of a long
        # prompt.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", config.max_streams),
        # Calls that the event loop has not taken yet. By default gRPC ends some of more than 1000, at random and with a
        # bare CANCELLED. The server itself refuses what is too much, and says when to try again.
        ("grpc.server.max_pending_requests", _UNLIMITED),
        ("grpc.server.max_pending_requests_hard_limit", _UNLIMITED),
        # Clients may ping while a stream is quiet (a long prefill, an idle Session). gRPC ignores the option's
        # `min_recv_…` spelling, and such streams then end with "too many pings".
        ("grpc.http2.min_ping_interval_without_data_ms", round(config.min_ping_interval * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # Finds clients that vanished without closing their connection. Until then their requests run.
        ("grpc.keepalive_time_ms", round(config.keepalive * 1000)),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
