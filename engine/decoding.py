"""Bytes that are no message are the client's mistake, and answered as such; gRPC itself would call it UNKNOWN."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from draftline.engine.answering import Context, abort
from draftline.engine.grpc_errors import to_status

if TYPE_CHECKING:  # the class that exists when it runs takes no parameters
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]

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
