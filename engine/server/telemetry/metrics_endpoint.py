"""The HTTP port for Prometheus, on threads of its own, so that a scrape delays no request."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from typing_extensions import override

from draftline.engine.errors import CannotListenError
from draftline.engine.server.listener import format_address

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PATH = "/metrics"

REQUEST_TIMEOUT_S = 10.0
"""Seconds for which a connection may be silent. Each one has a thread."""


class MetricsEndpoint:
    """A running endpoint.

    Attributes:
        port: the port that it listens on.
        url: of the metrics.
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
            address = format_address(host, port)
            raise CannotListenError(f"cannot listen on {address} for metrics: {error.strerror}") from error
        self._server.RequestHandlerClass = _Handler
        self._server.set_app(_nothing_else(make_wsgi_app(registry)))
        self.port = self._server.server_port
        self.url = f"http://{format_address(host, self.port)}{PATH}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(WSGIRequestHandler):
    """One connection. Probes that connect and leave are no errors: the base class would print their tracebacks."""

    @override
    def setup(self) -> None:
        self.request.settimeout(REQUEST_TIMEOUT_S)
        super().setup()

    @override
    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def _nothing_else(metrics: WSGIApplication) -> WSGIApplication:
    """``metrics`` at `PATH` alone. By itself it answers every path with 200, also a probe's while the model loads."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == PATH:
            return metrics(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [
            f"{environ['PATH_INFO']}: this port has {PATH} only; /health and /ready are on the HTTP port\n".encode()
        ]

    return answer
