"""Interceptors of every call: authentication by token, and a status for requests that cannot be decoded."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from prometheus_client import Counter
from typing_extensions import override

from draftline.engine.errors import DraftlineError
from draftline.engine.server.access import Access
from draftline.engine.server.grpc.errors import code_name, to_status
from draftline.engine.server.grpc.handlers import Context, abort, peer_of

if TYPE_CHECKING:  # at run time this class takes no parameters
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]

logger = logging.getLogger("draftline.access")

_PUBLIC = (f"/{health.SERVICE_NAME}/",)
"""Methods that need no token: health probes have none."""

_ADMIN = ("/draftline.v1.AdminService/", "/grpc.channelz.v1.Channelz/")
"""Methods that need a token with admin rights."""


class AuthenticationInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls whose token is unknown, or lacks the rights for the method."""

    def __init__(self, access: Access, refusals: Counter) -> None:
        """A new interceptor.

        Args:
            access: authenticates the calls.
            refusals: counts the calls that are refused, by code.
        """
        self._access = access
        self._refusals = refusals

    @override
    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler | None:
        method = str(handler_call_details.method)
        if not method.startswith(_PUBLIC):
            try:
                caller = self._access.caller(handler_call_details.invocation_metadata)
                if method.startswith(_ADMIN):
                    caller.require_admin()
            except DraftlineError as error:
                self._refusals.labels(code_name(error)).inc()
                return _refusal(method, error)
        return await continuation(handler_call_details)


def _refusal(method: str, error: DraftlineError) -> _Handler:
    """A handler for any kind of call that logs and ends it with ``error``, and reads nothing."""

    async def refuse(requests: object, context: Context) -> None:
        fields = {"call": method, "peer": peer_of(context), "code": code_name(error), "reason": str(error)}
        logger.warning("refused", extra={"fields": fields})
        await abort(context, to_status(error))

    return grpc.stream_stream_rpc_method_handler(refuse)


class DecodeErrorInterceptor(grpc.aio.ServerInterceptor):
    """Answers a request that cannot be decoded with a status.

    It covers methods with a single request, whose handlers are coroutines. The reader of a stream gets the error itself.
    """

    def __init__(self, packages: tuple[str, ...]) -> None:
        """``packages`` are the proto packages of the services that are covered."""
        self._prefixes = tuple(f"/{package}." for package in packages)

    @override
    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None or not str(handler_call_details.method).startswith(self._prefixes):
            return handler
        decode: Any = _decoder(handler.request_deserializer)
        encode: Any = handler.response_serializer
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(_behaviour(handler.unary_unary), decode, encode)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(_behaviour(handler.unary_stream), decode, encode)
        return handler


@dataclass(frozen=True, slots=True)
class _Undecodable:
    """Stands for a request that could not be decoded."""

    error: DecodeError


def _decoder(decode: Any) -> Callable[[bytes], Any]:
    """``decode``, returning its error as an `_Undecodable`."""

    def decode_or_error(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError as error:
            return _Undecodable(error)

    return decode_or_error


def _behaviour(behaviour: Any) -> Callable[[Any, Context], Awaitable[Any]]:
    """``behaviour`` of a method, or a status for an `_Undecodable`."""

    async def handle(request: Any, context: Context) -> Any:
        if isinstance(request, _Undecodable):
            await abort(context, to_status(request.error))
        return await behaviour(request, context)

    return handle
