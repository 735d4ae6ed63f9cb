"""The metrics of a server's open connections and Session streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from draftline.engine.server.listener import Listener
from draftline.engine.server.state import ServerState


class ConnectionMetrics(Collector):
    """Counts them when it is asked."""

    def __init__(self, state: ServerState, listeners: Sequence[Listener]) -> None:
        """``listeners`` are all faces of the server with this state."""
        self._state = state
        self._listeners = listeners

    @override
    def collect(self) -> Iterable[Metric]:
        sessions, connections = self._state.sessions, sum(listener.connections for listener in self._listeners)
        yield GaugeMetricFamily("draftline_open_sessions", "Session streams that are open.", sessions)
        yield GaugeMetricFamily(
            "draftline_open_connections", "Connections of clients, over gRPC and HTTP.", connections
        )
