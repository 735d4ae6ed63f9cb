"""What every HTTP request passes: the checks of Host, Origin and token, and the answer to an error.

A web page that a browser on the same machine shows could reach a server without tokens: by its own name, which it
rebinds to this machine's address, or as a request across origins. So without tokens a request must name the server by
an address, as localhost or by an allowed name, and a request from another origin is refused unless that origin is
allowed.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftline.engine.errors import DraftlineError, EngineStoppedError
from draftline.engine.server.access import Access
from draftline.engine.server.codes import code_name
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.http.call import CALLER, REQUEST_ID, peer_of, request_name
from draftline.engine.server.http.errors import DisconnectedError, HttpError, error_body, headers_of, status_of
from draftline.engine.server.http.protocol import ABORT
from draftline.engine.server.state import CUT_OFF
from draftline.engine.server.telemetry.request_log import log_refused_call

_PUBLIC = ("/", "/health", "/ready", "/live")
"""Paths that need no token: probes have none."""


class Guard:
    """The outermost ASGI application."""

    def __init__(self, app: ASGIApp, config: ServerConfig, access: Access, refusals: Counter) -> None:
        """Guard ``app``.

        Args:
            app: the application.
            config: the server's options.
            access: authenticates requests.
            refusals: counts the requests that are refused for their token, by code.
        """
        self._app = app
        self._config = config
        self._access = access
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        started = False
        name = request_name(Headers(scope=scope))
        # Characters that a header may not hold would end the connection.
        repeated = [(REQUEST_ID.encode(), name.encode())] if name.isascii() and name.isprintable() and name else []

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *repeated]
            await send(message)

        try:
            self._check(scope)
            scope["app"] = self  # then the router raises errors, and does not answer them itself
            await self._app(scope, receive, sending)
        except DisconnectedError:
            pass
        except asyncio.CancelledError:  # the server stops; uvicorn's own answer would be 500
            if not started:
                await error_response(EngineStoppedError(CUT_OFF), scope)(scope, receive, sending)
            raise
        except Exception as error:  # noqa: BLE001  every error has an answer
            if started:
                error_body(error)  # logs a fault
                scope["state"][ABORT]()
            else:
                await error_response(error, scope)(scope, receive, sending)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._config.tokens is None or self._config.http_allowed_hosts:
            self._check_host(host)
        origin = headers.get("origin")
        if origin is not None and not self._allows(origin, host):
            raise HttpError(
                403, f"requests from the origin {origin[:80]!r} are not allowed: see --http-allowed-origins"
            )
        if scope["path"] not in _PUBLIC:
            try:
                scope["state"][CALLER] = self._access.caller(headers.items())
            except DraftlineError as error:
                self._refusals.labels(code_name(error)).inc()
                log_refused_call(scope["path"], peer_of(scope), code_name(error), error)
                raise

    def _check_host(self, host: str) -> None:
        allowed = self._config.http_allowed_hosts
        name = _host_name(host)
        if "*" in allowed or name in (self._config.host.lower(), *map(str.lower, allowed)):
            return
        if name == "localhost" or name.endswith(".localhost") or _is_address(name):
            return
        raise HttpError(403, f"this server does not answer to the host {host[:80]!r}: see --http-allowed-hosts")

    def _allows(self, origin: str, host: str) -> bool:
        allowed: Iterable[str] = self._config.http_allowed_origins
        return "*" in allowed or origin in allowed or _netloc(origin) == host.lower()


def error_response(error: Exception, scope: Scope) -> Response:
    """The response to ``error`` of the request ``scope``, in OpenAI's form."""
    if isinstance(error, HTTPException):  # Starlette's own: no such path or method
        path = repr(scope["path"][:80])
        known = {404: f"there is no path {path}", 405: f"the path {path} does not take {scope['method']}"}
        report = "NOT_FOUND" if error.status_code == 404 else "INVALID_ARGUMENT"
        headers = dict(error.headers or {})
        error = HttpError(error.status_code, known.get(error.status_code, str(error.detail)), report=report)
        return JSONResponse(error_body(error), error.status, headers)
    return JSONResponse(error_body(error), status_of(error), headers_of(error))


def _host_name(host: str) -> str:
    """The name in a Host header, in lower case, without the port and an IPv6 address's brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _netloc(origin: str) -> str | None:
    """The host and port of an origin; None if it has none."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
