"""``HealthService``: ``grpc.health.v1``, which also says why a server is not serving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpc_health.v1 import health
from typing_extensions import override

from draftline.engine.server.state import ServerState

if TYPE_CHECKING:
    from grpc_health.v1 import health_pb2

STATUS_KEY = "draftline-status"
"""The trailing metadata of ``Check`` with the `ServerStatus`: the protocol's own answer is only NOT_SERVING."""


class HealthService(health.aio.HealthServicer):
    """The health of one server."""

    def __init__(self, state: ServerState) -> None:
        """``state`` is that of the whole server."""
        super().__init__()
        self._state = state

    @override
    async def Check(  # type: ignore[override]  # the stubs are those of the synchronous one
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> health_pb2.HealthCheckResponse | None:
        context.set_trailing_metadata(((STATUS_KEY, self._state.status),))
        return await super().Check(request, context)
