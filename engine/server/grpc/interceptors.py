"""Interceptors of every call: authentication by token, and a status for a missing, repeated or damaged request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from prometheus_client import Counter
from typing_extensions import override

from draftline.engine.errors import DraftlineError
from draftline.engine.server.access import Access
from draftline.engine.server.grpc.errors import code_name, to_status, unimplemented
from draftline.engine.server.grpc.handlers import Context, abort, peer_of
from draftline.engine.server.telemetry.request_log import log_refused_call

if TYPE_CHECKING:  # at run time this class takes no parameters
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]

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
        log_refused_call(method, peer_of(context), code_name(error), error)
        await abort(context, to_status(error))

    return grpc.stream_stream_rpc_method_handler(refuse)


class SingleRequestInterceptor(grpc.aio.ServerInterceptor):
    """Reads the request of each method that takes one, and answers with a status unless it is one that can be decoded.

    gRPC's own reader leaves a call without a request open for ever, ignores all but the first, and calls damaged bytes
    a fault of the server. So these methods are served as methods with a stream of requests. Their handlers are
    coroutines.
    """

    @override
    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        decode: Any = handler.request_deserializer
        encode: Any = handler.response_serializer
        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(_with_request(handler.unary_unary), decode, encode)
        return grpc.stream_stream_rpc_method_handler(_with_request(handler.unary_stream), decode, encode)


def _with_request(behaviour: Any) -> Callable[[object, Context], Awaitable[Any]]:
    """``behaviour`` of a method, with the only message of a stream as its request."""

    async def handle(_: object, context: Context) -> Any:
        try:
            request = await context.read()
            has_more = request is not grpc.aio.EOF and await context.read() is not grpc.aio.EOF
        except DecodeError as error:
            await abort(context, to_status(error))
        if request is grpc.aio.EOF or has_more:
            number = "more than one request" if has_more else "no request"
            # The code that gRPC has for it: https://grpc.github.io/grpc/core/md_doc_statuscodes.html
            await abort(context, unimplemented(f"the call has {number}, and the method takes exactly one"))
        return await behaviour(request, context)

    return handle
