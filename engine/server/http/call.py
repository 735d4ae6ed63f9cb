"""``HttpCall``: an HTTP request, as the rest of the server needs it."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from draftline.engine.server.access import Caller
from draftline.engine.server.codes import CANCELLED, code_name
from draftline.engine.server.http.errors import DisconnectedError, HttpError
from draftline.engine.server.limits import MAX_REQUEST_ID, MAX_TRACEPARENT
from draftline.engine.server.telemetry.reports import TRACE_HEADERS, Origin

CALLER = "caller"
"""The key of a request's scope state whose value is its `Caller`."""

REQUEST_ID = "x-request-id"
"""The header with the client's name for a request, which every answer repeats."""


@dataclass(frozen=True, slots=True)
class HttpCall:
    """An HTTP request, as `InFlightRequest` needs it.

    Attributes:
        caller: the owner of the request's token.
        origin: the source of the request, for reports. Its call is the path.
        client_id: the client's ``x-request-id``; empty if it sent none.
    """

    caller: Caller
    origin: Origin
    client_id: str

    @staticmethod
    def of(request: Request) -> HttpCall:
        """The call of a request that the guard has let in."""
        caller: Caller = request.scope["state"][CALLER]
        headers = request.headers
        trace = {
            name: headers[name] for name in TRACE_HEADERS if len(headers.get(name, "")) in range(1, MAX_TRACEPARENT)
        }
        origin = Origin(request.scope["path"], peer_of(request.scope), caller.name, trace)
        return HttpCall(caller, origin, request_name(headers))

    def outcome(self, error: BaseException) -> str:
        """The code of a request that ``error`` ends."""
        if isinstance(error, HttpError):
            return error.report
        if isinstance(error, DisconnectedError) or not isinstance(error, Exception):
            return CANCELLED
        return code_name(error)


def request_name(headers: Headers) -> str:
    """The client's name for a request, without what is too long; empty if it sent none."""
    return headers.get(REQUEST_ID, "")[:MAX_REQUEST_ID]


def peer_of(scope: Scope) -> str:
    """The client's address in the form that gRPC has, so that one client is one caller in both faces."""
    if not scope.get("client"):
        return ""
    host, port = scope["client"]
    host = host.removeprefix("::ffff:")  # of an IPv4 client of an IPv6 address; gRPC removes it too
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
