"""Interceptors of every call: authentication by token, and an answer for bytes that are no message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health

from draftline.engine.errors import DraftlineError
from draftline.engine.server.access import Access
from draftline.engine.server.grpc.errors import to_status
from draftline.engine.server.grpc.handlers import Context, abort

if TYPE_CHECKING:  # the class that exists when it runs takes no parameters
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]

_OPEN = (f"/{health.SERVICE_NAME}/",)
"""Probes have no tokens."""

_FOR_ADMINS = ("/draftline.v1.AdminService/", "/grpc.channelz.v1.Channelz/")


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


_Behaviour = Callable[[Any, Context], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class _Undecodable:
    """What stands in the place of a request that could not be read."""

    error: DecodeError


class Decoding(grpc.aio.ServerInterceptor):
    """For calls with one request, whose handlers are coroutines. A stream's reader meets the error itself."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        """``packages`` are those of the services whose calls are looked after."""
        self._prefixes = tuple(f"/{package}." for package in packages)

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler | None:
        """The call's handler, with both in place."""
        handler = await continuation(handler_call_details)
        if handler is None or not str(handler_call_details.method).startswith(self._prefixes):
            return handler
        decode: Any = _decoding(handler.request_deserializer)
        encode: Any = handler.response_serializer
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(_answering(handler.unary_unary), decode, encode)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(_answering(handler.unary_stream), decode, encode)
        return handler


def _decoding(decode: Any) -> Callable[[bytes], Any]:
    def decoding(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError as error:
            return _Undecodable(error)

    return decoding


def _answering(behaviour: Any) -> _Behaviour:
    async def answering(request: Any, context: Context) -> Any:
        if isinstance(request, _Undecodable):
            await abort(context, to_status(request.error))
        return await behaviour(request, context)

    return answering
