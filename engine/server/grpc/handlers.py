"""The handlers of RPCs: their context, the call that they serve, and the status that an error ends it with."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar
from urllib.parse import unquote

import grpc.aio
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from draftline.engine.server.access import Caller
from draftline.engine.server.codes import CANCELLED, DEADLINE_EXCEEDED
from draftline.engine.server.grpc.errors import code_name, to_status
from draftline.engine.server.in_flight import counted
from draftline.engine.server.limits import MAX_REQUEST_ID
from draftline.engine.server.state import ServerState
from draftline.engine.server.telemetry.reports import TRACE_HEADERS, Origin

_Servicer = TypeVar("_Servicer")
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
Context = grpc.aio.ServicerContext[Any, Any]

_EARLIER_S = 0.1
"""How much earlier than here a deadline may pass at the client, which then cancels: gRPC rounds timeouts up on the
wire."""


def with_error_status(
    handler: Callable[[_Servicer, _Request, Context], Awaitable[_Response]],
) -> Callable[[_Servicer, _Request, Context], Awaitable[_Response]]:
    """Decorate a handler: an error that it raises ends the call with the error's status."""

    @functools.wraps(handler)
    async def handle(self: _Servicer, request: _Request, context: Context) -> _Response:
        try:
            try:
                return await handler(self, request, context)
            except grpc.aio.BaseError:
                raise  # gRPC's own error, such as that of an abort: the client gets no further answer
            except Exception as error:  # noqa: BLE001  every error has a status
                await abort(context, to_status(error))
        except grpc.aio.InternalError:  # the client left while a message or a status waited: gRPC would log a fault
            raise asyncio.CancelledError from None

    return handle


def with_report(
    handler: Callable[[_Servicer, _Request, Context], Awaitable[_Response]],
) -> Callable[[_Servicer, _Request, Context], Awaitable[_Response]]:
    """Decorate the handler of a call that is not a request of the engine.

    The call counts against the limits of the caller's token, and gets a report of its own.
    """

    @functools.wraps(handler)
    async def handle(self: _Servicer, request: _Request, context: Context) -> _Response:
        state: ServerState = self.state  # type: ignore[attr-defined]
        call = GrpcCall.of(state, handler.__name__, context)
        with counted(state, call, call.client_id):
            return await handler(self, request, context)

    return handle


async def abort(context: Context, status: Status) -> NoReturn:
    """End the call with a status."""
    await context.abort_with_status(rpc_status.to_status(status))


def peer_of(context: Context) -> str:
    """The client's address, such as ``ipv4:10.0.0.1:4711`` or ``ipv6:[::1]:4711``."""
    return unquote(context.peer())  # gRPC escapes the brackets


@dataclass(frozen=True, slots=True)
class GrpcCall:
    """A gRPC call, as `InFlightRequest` needs it.

    Attributes:
        context: of the call.
        caller: the owner of the call's token.
        origin: the source of the call, for reports.
        client_id: the client's ``x-request-id``; empty if it sent none.
    """

    context: Context
    caller: Caller
    origin: Origin
    client_id: str

    @staticmethod
    def of(state: ServerState, method: str, context: Context) -> GrpcCall:
        """Authenticate a call of ``method``.

        Raises:
            UnauthenticatedError: its token is unknown.
        """
        caller = state.access.caller(context.invocation_metadata())
        metadata = dict(context.invocation_metadata() or ())
        trace = {name: str(metadata[name]) for name in TRACE_HEADERS if name in metadata}
        origin = Origin(method, peer_of(context), caller.name, trace)
        return GrpcCall(context, caller, origin, str(metadata.get("x-request-id", ""))[:MAX_REQUEST_ID])

    def with_trace(self, traceparent: str) -> GrpcCall:
        """The call, with the trace context of one of its requests."""
        return replace(self, origin=replace(self.origin, trace={"traceparent": traceparent}))

    def time_left(self) -> float | None:
        """Seconds until the call's deadline; None without one."""
        return self.context.time_remaining()

    def outcome(self, error: BaseException) -> str:
        """The code of a request that ``error`` ends."""
        if isinstance(error, Exception) and not isinstance(error, grpc.aio.BaseError):
            return code_name(error)
        # The task was cancelled, or gRPC reported a disconnect: which of the two depends on where the handler waited.
        left = self.time_left()
        return DEADLINE_EXCEEDED if left is not None and left < _EARLIER_S else CANCELLED
