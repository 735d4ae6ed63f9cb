"""``HealthService``: ``grpc.health.v1``, which also says why a server is not serving.

grpcio's own servicer tells watchers of a change one after the other. One that reads nothing would keep the rest, and
the server that reports the change, waiting: it could not drain. Here each watcher waits for its own client alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthServicer
from typing_extensions import override

from draftline.engine.server.grpc.handlers import with_error_status
from draftline.engine.server.grpc.stream_writer import StreamWriter
from draftline.engine.server.state import ServerState

STATUS_KEY = "draftline-status"
"""The trailing metadata of ``Check`` with the `ServerStatus`: the protocol's own answer is only NOT_SERVING."""


class HealthService(HealthServicer):
    """The health of one server and its services, which serve together."""

    def __init__(self, state: ServerState, services: Iterable[str]) -> None:
        """A new service.

        Args:
            state: of the whole server.
            services: the names that clients may ask for, besides the empty one for the server.
        """
        self._state = state
        self._services = ("", *services)

    @override
    @with_error_status
    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        context.set_trailing_metadata(((STATUS_KEY, self._state.status),))
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"this server has no service {request.service[:80]!r}")
        return health_pb2.HealthCheckResponse(status=self._of(request.service))

    @override
    @with_error_status
    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        last = None
        with StreamWriter(context, self._state.config.stall_timeout) as writer:
            while True:
                changed = self._state.status_changed  # before the write: a change during it counts
                status = self._of(request.service)
                if status != last:
                    await writer.write(health_pb2.HealthCheckResponse(status=status))
                last = status
                await changed.wait()

    @with_error_status
    async def List(self, request: Any, context: Any) -> Any:  # the stubs of the types lack it
        """The health of the server and of all services."""
        statuses = {name: health_pb2.HealthCheckResponse(status=self._of(name)) for name in self._services}
        return health_pb2.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]

    def _of(self, service: str) -> int:
        """The health of a service."""
        statuses = health_pb2.HealthCheckResponse
        if service not in self._services:
            return statuses.SERVICE_UNKNOWN
        return statuses.SERVING if self._state.status == "ready" else statuses.NOT_SERVING
