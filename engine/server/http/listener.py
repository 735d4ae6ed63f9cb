"""``HttpListener``: the HTTP face on a port of its own, served by uvicorn on the server's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from functools import partial

import uvicorn
from prometheus_client import CollectorRegistry, Counter
from typing_extensions import override

from draftline.engine.errors import CannotListenError
from draftline.engine.server.http.app import application
from draftline.engine.server.http.credentials import server_context
from draftline.engine.server.http.protocol import HttpProtocol
from draftline.engine.server.listener import Listener, format_address
from draftline.engine.server.state import ServerState
from draftline.engine.server.tls import Certificate

KEEP_ALIVE_S = 75
"""Seconds for which an idle connection stays open: longer than clients keep theirs, so that none sends into its end."""


class HttpListener(Listener):
    """The HTTP server of one event loop."""

    def __init__(
        self, state: ServerState, registry: CollectorRegistry, refusals: Counter, certificate: Certificate | None
    ) -> None:
        """A server that does not listen yet.

        Args:
            state: the state of the whole server.
            registry: collects the metrics for Prometheus.
            refusals: counts the requests that are refused for their token, by code.
            certificate: for TLS; None serves plaintext.
        """
        assert state.config.http_port is not None, "the HTTP face has a port"
        self._host, self._port = state.config.host, state.config.http_port
        self._stall_timeout = state.config.stall_timeout
        context = None if certificate is None else server_context(certificate)
        self._server = _Server(_config(application(state, registry, refusals), context, self._stall_timeout))
        self._serving: asyncio.Task[None] | None = None

    @property
    @override
    def address(self) -> str:
        return format_address(self._host, self._port)

    @property
    @override
    def connections(self) -> int:
        return len(self._server.server_state.connections)

    @override
    async def start(self) -> None:
        listening = _listen(self._host, self._port, self._stall_timeout)
        self._port = listening.getsockname()[1]
        self._serving = asyncio.create_task(self._server.serve([listening]))
        await self._server.listening.wait()

    @override
    async def stop(self, grace_s: float | None) -> None:
        if self._serving is None:
            return
        # uvicorn wants whole seconds, and takes any number.
        self._server.config.timeout_graceful_shutdown = grace_s or 0  # type: ignore[assignment]
        self._server.should_exit = True
        await self._serving
        await asyncio.gather(*self._server.server_state.tasks, return_exceptions=True)
        self._serving = None


class _Server(uvicorn.Server):
    """uvicorn's server, without its handling of signals: the process has its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: object, context: ssl.SSLContext | None, stall_timeout: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=partial(HttpProtocol, stall_timeout=stall_timeout),  # type: ignore[arg-type]
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # the guard logs faults, and reports requests
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        ssl_context_factory=None if context is None else lambda *_: context,
    )


def _listen(host: str, port: int, stall_timeout: float) -> socket.socket:
    """A listening socket. A connection whose client reads nothing for ``stall_timeout`` seconds ends.

    Raises:
        CannotListenError: the address is not this machine's, or the port is in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit it
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stall_timeout * 1000))
            listening.bind(address)
            listening.listen(2048)
            listening.setblocking(False)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise CannotListenError(f"cannot listen on {format_address(host, port)}: {error.strerror}") from error
    return listening
