"""Errors as ``google.rpc.Status``: which code each class gets, with details that a client's program can act on.

Faults of the server say no more than that there was one: their causes go to the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc.code_pb2 import (
    ABORTED,
    ALREADY_EXISTS,
    DEADLINE_EXCEEDED,
    FAILED_PRECONDITION,
    INTERNAL,
    INVALID_ARGUMENT,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    Code,
)
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status

from draftline.engine.errors import (
    DeadlineExceededError,
    DuplicateRequestError,
    EngineStoppedError,
    FieldViolation,
    InvalidRequestError,
    PermissionDeniedError,
    ProfilerError,
    QueueFullError,
    StalledReaderError,
    StepFailedError,
    UnauthenticatedError,
)

logger = logging.getLogger(__name__)

_INTERNAL = "a fault in the server ended this request; the server's log says more"

MAX_MESSAGE = 500
MAX_FIELD = 200
MAX_VIOLATIONS = 3000
"""Bytes of a status. It travels in HTTP/2 trailers, base64 and percent-encoded, and clients take 8 KiB of trailers by
default: more would lose them the whole status."""


_CODES: Mapping[type[BaseException], int] = {
    InvalidRequestError: INVALID_ARGUMENT,
    QueueFullError: RESOURCE_EXHAUSTED,
    DuplicateRequestError: ALREADY_EXISTS,
    EngineStoppedError: UNAVAILABLE,
    DeadlineExceededError: DEADLINE_EXCEEDED,
    StalledReaderError: ABORTED,
    UnauthenticatedError: UNAUTHENTICATED,
    PermissionDeniedError: PERMISSION_DENIED,
    ProfilerError: FAILED_PRECONDITION,
    DecodeError: INVALID_ARGUMENT,
}
"""What is not in it is a fault of the server."""


def code_of(error: BaseException) -> int:
    """The ``google.rpc.Code`` of an error."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), INTERNAL)


def code_name(error: BaseException) -> str:
    """The name of that code."""
    return str(Code.Name(code_of(error)))


def to_status(error: BaseException) -> Status:
    """The status that tells a client of ``error``. An error that is not the client's doing is logged here."""
    code = code_of(error)
    if code == INTERNAL:
        if not isinstance(error, StepFailedError):  # that one the engine has logged, once for all requests of the step
            logger.error("a request failed", exc_info=error)
        return _status(INTERNAL, _INTERNAL)
    match error:
        case InvalidRequestError():
            return _status(code, str(error), _bad_request(error.violations))
        case QueueFullError():
            return _status(code, str(error), RetryInfo(retry_delay=_duration(error.retry_after_s)))
        case _:
            return _status(code, str(error))


def unimplemented(message: str) -> Status:
    """The status of something that this server cannot do."""
    return _status(UNIMPLEMENTED, message)


def _status(code: int, message: str, *details: Message) -> Status:
    status = Status(code=code, message=_shortened(message, MAX_MESSAGE))
    for detail in details:
        packed = Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def _bad_request(violations: Sequence[FieldViolation]) -> BadRequest:
    listed = BadRequest()
    for violation in violations:
        entry = BadRequest.FieldViolation(
            field=_shortened(violation.field, MAX_FIELD), description=_shortened(violation.description, MAX_MESSAGE)
        )
        if listed.ByteSize() + entry.ByteSize() > MAX_VIOLATIONS:
            break
        listed.field_violations.append(entry)
    return listed


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromMilliseconds(round(seconds * 1000))
    return duration


def _shortened(text: str, most: int) -> str:
    """At most ``most`` bytes of UTF-8, cut at a character."""
    encoded = text.encode()
    return text if len(encoded) <= most else encoded[: most - 3].decode(errors="ignore") + "…"
