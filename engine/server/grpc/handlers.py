"""Handlers of calls whose errors become statuses: the one place where a call ends with anything but OK."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import grpc.aio
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from draftline.engine.server.grpc.errors import code_name, to_status
from draftline.engine.server.telemetry.reports import Observer, OpenRequest, Origin

_Servicer = TypeVar("_Servicer")
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
Context = grpc.aio.ServicerContext[Any, Any]

_TRACE_HEADERS = ("traceparent", "tracestate")


def answers_errors(
    handler: Callable[[_Servicer, _Request, Context], Awaitable[_Response]],
) -> Callable[[_Servicer, _Request, Context], Awaitable[_Response]]:
    """End the call with the status of whatever the handler raises."""

    @functools.wraps(handler)
    async def answering(self: _Servicer, request: _Request, context: Context) -> _Response:
        try:
            return await handler(self, request, context)
        except grpc.aio.BaseError:
            raise  # gRPC's own, when the client has gone, or of an abort: there is nobody to answer any more
        except Exception as error:  # noqa: BLE001  every error has a status
            await abort(context, to_status(error))

    return answering


async def abort(context: Context, status: Status) -> NoReturn:
    """End the call with a status."""
    await context.abort_with_status(rpc_status.to_status(status))


def origin_of(call: str, context: Context, caller: str) -> Origin:
    """What is known of where a call comes from."""
    metadata = dict(context.invocation_metadata() or ())
    trace = {name: str(metadata[name]) for name in _TRACE_HEADERS if name in metadata}
    return Origin(call, context.peer(), caller, trace)


def client_id_of(context: Context) -> str:
    """What the client calls the one request of its call: its ``x-request-id``, if it sent one."""
    return str(dict(context.invocation_metadata() or ()).get("x-request-id", ""))[:256]


@contextmanager
def reported(
    observers: Sequence[Observer], origin: Origin, request_id: str, client_id: str, context: Context
) -> Iterator[OpenRequest]:
    """Report the one request of a call when the call is over, however it ends."""
    request = OpenRequest(observers, origin, request_id, client_id)
    try:
        yield request
    except BaseException as error:
        request.close(outcome(error, context))
        raise
    request.close("OK")


def outcome(error: BaseException, context: Context) -> str:
    """The name of the code that a call ends with, where the handler was left by ``error``."""
    if isinstance(error, Exception) and not isinstance(error, grpc.aio.BaseError):
        return code_name(error)
    # The handler was cancelled, or gRPC told it that nobody is there. Which error it sees depends on where it waited.
    return "DEADLINE_EXCEEDED" if context.time_remaining() == 0 else "CANCELLED"
