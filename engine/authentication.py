"""Every call's token is looked at before the call is: one place for all services, so that none is forgotten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health

from draftline.engine.access import Access
from draftline.engine.answering import Context, abort
from draftline.engine.errors import DraftlineError
from draftline.engine.grpc_errors import to_status

_OPEN = (f"/{health.SERVICE_NAME}/",)
"""Probes have no tokens."""

_FOR_ADMINS = ("/draftline.v1.AdminService/", "/grpc.channelz.v1.Channelz/")

if TYPE_CHECKING:  # the class that exists when it runs takes no parameters
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]


class Authentication(grpc.aio.ServerInterceptor):
    """Refuses calls whose token is not known, or does not suffice."""

    def __init__(self, access: Access) -> None:
        """``access`` knows the tokens."""
        self._access = access

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler | None:
        """Go on to the call, or refuse it in its place."""
        method = str(handler_call_details.method)
        if not method.startswith(_OPEN):
            try:
                caller = self._access.caller(handler_call_details.invocation_metadata)
                if method.startswith(_FOR_ADMINS):
                    caller.require_admin()
            except DraftlineError as error:
                return _refusal(to_status(error))
        return await continuation(handler_call_details)


def _refusal(status: Status) -> _Handler:
    """A handler that answers so without reading anything, whatever kind of call it is."""

    async def refuse(requests: object, context: Context) -> None:
        await abort(context, status)

    return grpc.stream_stream_rpc_method_handler(refuse)
