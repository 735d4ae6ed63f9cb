"""From a call's status to the error that the server raised: the inverse of `draftline.engine.server.grpc.errors`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import code_pb2
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from draftline.engine.errors import (
    CallFailedError,
    ConstraintLimitError,
    DeadlineExceededError,
    DraftlineError,
    DuplicateRequestError,
    EngineStoppedError,
    FieldViolation,
    InvalidRequestError,
    PermissionDeniedError,
    QueueFullError,
    StalledReaderError,
    StepFailedError,
    UnauthenticatedError,
)

_Detail = TypeVar("_Detail", bound=Message)

_PLAIN: Mapping[int, Callable[[str], DraftlineError]] = {
    code_pb2.ALREADY_EXISTS: DuplicateRequestError,
    code_pb2.UNAVAILABLE: EngineStoppedError,
    code_pb2.DEADLINE_EXCEEDED: DeadlineExceededError,
    code_pb2.ABORTED: StalledReaderError,
    code_pb2.UNAUTHENTICATED: UnauthenticatedError,
    code_pb2.PERMISSION_DENIED: PermissionDeniedError,
    code_pb2.INTERNAL: StepFailedError,
}


_TOO_LARGE = re.compile(r"SERVER: Received message larger than max \(\d+ vs\. (\d+)\)")
"""gRPC's refusal of a message before the server sees it. Only the text tells it from a full queue."""


def error_of(status: Status) -> DraftlineError:
    """Make the error of a status."""
    if status.code == code_pb2.INVALID_ARGUMENT:
        listed = _detail(status, BadRequest).field_violations
        violations = [FieldViolation(entry.field, entry.description, entry.reason) for entry in listed]
        return InvalidRequestError(*(violations or [FieldViolation("request", status.message)]))
    if status.code == code_pb2.RESOURCE_EXHAUSTED:
        if _detail(status, ErrorInfo).reason == "CONSTRAINT_LIMIT":
            return ConstraintLimitError(status.message)
        delay = _detail(status, RetryInfo).retry_delay
        return QueueFullError(status.message, delay.seconds + delay.nanos / 1e9)
    if status.code in _PLAIN:
        return _PLAIN[status.code](status.message)
    return CallFailedError(f"{code_pb2.Code.Name(status.code)}: {status.message}")


def call_error(error: grpc.aio.AioRpcError) -> DraftlineError:
    """Make the error of a failed call: the server's own, or gRPC's where no server answered."""
    if (limit := size_limit(error)) is not None:
        return too_large(limit)
    try:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]
    except ValueError:  # a proxy sent details that do not match the code
        status = None
    return error_of(status or Status(code=error.code().value[0], message=error.details() or ""))


def size_limit(error: grpc.aio.AioRpcError) -> int | None:
    """The most bytes that the server takes in a message, if a larger one has ended the call; else None."""
    found = _TOO_LARGE.search(error.details() or "")
    return None if found is None else int(found[1])


def too_large(limit: int) -> InvalidRequestError:
    """The error of a request whose message has more than ``limit`` bytes."""
    return InvalidRequestError(
        FieldViolation("request", f"is too large: the server takes messages of at most {limit} bytes")
    )


def _detail(status: Status, kind: type[_Detail]) -> _Detail:
    """Return the status's detail of this kind; an empty one where it has none."""
    detail = kind()
    for packed in status.details:
        if packed.Is(kind.DESCRIPTOR):
            packed.Unpack(detail)
    return detail
