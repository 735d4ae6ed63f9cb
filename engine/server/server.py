"""``Server``: the life cycle of a server, from its first port to the end of its last request.

The server listens before the model is loaded, so that a port in use is reported at once. Until then health probes get
"not serving".
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from draftline.engine.errors import MissingExtraError
from draftline.engine.protocol import EngineClient
from draftline.engine.server.access import Access, OpenAccess, TokenAccess
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.grpc.listener import GrpcListener
from draftline.engine.server.hang_watch import HangWatch
from draftline.engine.server.listener import Listener
from draftline.engine.server.state import ServerState
from draftline.engine.server.telemetry.connections import ConnectionMetrics
from draftline.engine.server.telemetry.metrics import Metrics, ModelLabel
from draftline.engine.server.telemetry.metrics_endpoint import MetricsEndpoint
from draftline.engine.server.telemetry.reports import Observer
from draftline.engine.server.telemetry.request_log import log_request
from draftline.engine.server.tls import Certificate
from draftline.engine.streaming.mailbox import Hub

if TYPE_CHECKING:
    from draftline.engine.server.telemetry.tracing import Tracing

_FLUSH_S = 0.5
"""Seconds for the last messages of ended calls to leave. After that, calls that are still open are cut off."""


class Server:
    """A server on one event loop: `start`, then `serve` an engine, then `drain` or `abort`.

    Attributes:
        listeners: its faces.
    """

    def __init__(self, config: ServerConfig) -> None:
        """A server that does not listen yet. Must be called on the event loop that will run it.

        Raises:
            CertificateError: the certificate cannot be read.
            TokenFileError: the tokens cannot be read.
            MissingExtraError: an option needs packages that are not installed.
        """
        self._config = config
        access = _access(config)
        certificate = _certificate(config)
        self._metrics = Metrics()
        self._metrics_endpoint: MetricsEndpoint | None = None
        self._tracing = _tracing(config)
        self._state = ServerState(config, access, Hub(asyncio.get_running_loop()), self._observers())
        self._grpc: Listener = GrpcListener(self._state, self._metrics.registry, self._metrics.refusals, certificate)
        self._http = self._http_listener(certificate)
        self.listeners: list[Listener] = [self._grpc] if self._http is None else [self._grpc, self._http]
        self._metrics.registry.register(ConnectionMetrics(self._state, self.listeners))
        self._watching: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """``host:port`` of the gRPC API. The port is the configured one until `start`, and the real one afterwards."""
        return self._grpc.address

    @property
    def http_address(self) -> str | None:
        """``host:port`` of the HTTP API, in the same way; None without one."""
        return None if self._http is None else self._http.address

    @property
    def metrics_url(self) -> str | None:
        """The URL of the metrics that are served on a port of their own, from `start` on; None without one."""
        return None if self._metrics_endpoint is None else self._metrics_endpoint.url

    async def start(self) -> None:
        """Listen. Until `serve`, calls get the error that the model is still loading.

        Raises:
            CannotListenError: an address cannot be used.
        """
        if self._config.metrics_port is not None:
            host, port = self._config.metrics_host, self._config.metrics_port
            self._metrics_endpoint = MetricsEndpoint(host, port, self._labelled_metrics())
        try:
            for listener in self.listeners:
                await listener.start()
        except BaseException:  # cannot listen, or cancelled
            await self.abort()  # those that listen already
            raise

    async def serve(self, engine: EngineClient) -> None:
        """Admit requests to ``engine``. Health probes get "serving" while the engine finishes steps."""
        self._metrics.watch(engine)
        if self._tracing is not None:
            self._tracing.serve(engine.info.model)
        self._state.serve(engine)
        self._watching = asyncio.create_task(self._watch(engine))

    async def wait_idle(self) -> None:
        """Wait until no request is in flight."""
        await self._state.wait_idle()

    async def drain(self) -> bool:
        """Refuse new requests, let those in flight finish, then stop.

        Returns:
            False if some requests did not finish within the drain timeout, and were cut off.
        """
        self._state.drain()
        self._stop_watching()
        finished = True
        try:
            async with asyncio.timeout(self._config.drain_timeout):
                await self.wait_idle()
        except TimeoutError:
            finished = False
            self._state.cut_off()
        await self._stop(_FLUSH_S)
        await self._close()
        return finished

    async def abort(self) -> None:
        """Stop at once, and cut off the requests in flight. No effect after `drain`."""
        self._stop_watching()
        await self._stop(None)
        await self._close()

    async def _stop(self, grace_s: float | None) -> None:
        await asyncio.gather(*(listener.stop(grace_s) for listener in self.listeners))

    def _labelled_metrics(self) -> CollectorRegistry:
        """The metrics as Prometheus gets them: each with the model as a label."""
        labelled = CollectorRegistry()
        labelled.register(ModelLabel(self._metrics))
        return labelled

    def _http_listener(self, certificate: Certificate | None) -> Listener | None:
        if self._config.http_port is None:
            return None
        try:
            from draftline.engine.server.http.listener import HttpListener  # an optional dependency
        except ImportError as error:
            raise MissingExtraError("http_port", "http") from error
        return HttpListener(self._state, self._labelled_metrics(), self._metrics.refusals, certificate)

    async def _close(self) -> None:
        """Close the metrics endpoint, the tracing and the state."""
        await asyncio.to_thread(self._state.close)
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
        """Report to health probes that the engine hangs, goes on, or has ended by itself."""
        ended = asyncio.wrap_future(engine.stopped)
        watch = HangWatch(engine, self._config.step_timeout)
        while not (await asyncio.wait([ended], timeout=watch.interval_s))[0]:
            self._state.note_hang(hangs=watch.hangs())
        self._state.report_status()

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None  # the task's frame refers to this server, which must be freed before its loop


def _access(config: ServerConfig) -> Access:
    if config.tokens is not None:
        return TokenAccess(Path(config.tokens))
    return OpenAccess(admin=config.is_local if config.admin is None else config.admin)


def _certificate(config: ServerConfig) -> Certificate | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    authorities = None if config.tls_client_ca is None else Path(config.tls_client_ca)
    return Certificate(Path(config.tls_cert), Path(config.tls_key), authorities)


def _tracing(config: ServerConfig) -> Tracing | None:
    if config.otlp_endpoint is None:
        return None
    try:
        from draftline.engine.server.telemetry.tracing import Tracing  # an optional dependency
    except ImportError as error:
        raise MissingExtraError("otlp_endpoint", "tracing") from error
    return Tracing(config.otlp_endpoint)
