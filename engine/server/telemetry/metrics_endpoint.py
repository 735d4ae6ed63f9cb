"""The HTTP port for Prometheus, on threads of its own, so that a scrape delays no request."""

from __future__ import annotations

from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from draftline.engine.errors import CannotListenError


class MetricsEndpoint:
    """A running endpoint.

    Attributes:
        port: the port that it listens on.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Listen.

        Raises:
            CannotListenError: the address cannot be used.
        """
        self._server: WSGIServer
        self._thread: Thread
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise CannotListenError(f"cannot listen on {host}:{port} for metrics: {error.strerror}") from error
        self.port = self._server.server_port

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
