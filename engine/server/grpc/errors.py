"""Errors as ``google.rpc.Status``, with details that a client's program can act on.

A fault of the server is reported without its cause, which goes to the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc.code_pb2 import INTERNAL, INVALID_ARGUMENT, UNIMPLEMENTED, Code
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from draftline.engine.errors import (
    ConstraintLimitError,
    FieldViolation,
    InvalidRequestError,
    QueueFullError,
    StepFailedError,
)
from draftline.engine.server import codes

logger = logging.getLogger(__name__)

DOMAIN = "draftline"
CONSTRAINT_LIMIT = "CONSTRAINT_LIMIT"
"""The reason in the ``ErrorInfo`` of a `ConstraintLimitError`, which tells it from a full queue."""

MAX_MESSAGE = 500
MAX_FIELD = 200
MAX_VIOLATIONS = 3000
"""Bytes in the parts of a status. It travels in HTTP/2 trailers, in base64 and percent-encoded. By default clients drop
trailers above 8 KiB, and the whole status with them."""


def code_of(error: BaseException) -> int:
    """The ``google.rpc.Code`` of an error."""
    return INVALID_ARGUMENT if isinstance(error, DecodeError) else int(Code.Value(codes.code_name(error)))


def code_name(error: BaseException) -> str:
    """The name of that code."""
    return str(Code.Name(code_of(error)))


def to_status(error: BaseException) -> Status:
    """The status of ``error``. A fault of the server is also logged."""
    code = code_of(error)
    if code == INTERNAL:
        if not isinstance(error, StepFailedError):  # the engine has logged it, once for all requests of the step
            logger.error("a request failed", exc_info=error)
        return _status(INTERNAL, str(StepFailedError()))
    match error:
        case InvalidRequestError():
            return _status(code, str(error), _bad_request(error.violations))
        case QueueFullError():
            return _status(code, str(error), RetryInfo(retry_delay=_duration(error.retry_after_s)))
        case ConstraintLimitError():
            return _status(code, str(error), ErrorInfo(reason=CONSTRAINT_LIMIT, domain=DOMAIN))
        case _:
            return _status(code, str(error))


def unimplemented(message: str) -> Status:
    """The status of a call that this server does not support."""
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
            field=_shortened(violation.field, MAX_FIELD),
            description=_shortened(violation.description, MAX_MESSAGE),
            reason=violation.reason,
        )
        if listed.ByteSize() + entry.ByteSize() > MAX_VIOLATIONS:
            break
        listed.field_violations.append(entry)
    return listed


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromMilliseconds(round(seconds * 1000))
    return duration


def _shortened(text: str, limit: int) -> str:
    """``text``, cut at a character to at most ``limit`` bytes of UTF-8."""
    encoded = text.encode()
    return text if len(encoded) <= limit else encoded[: limit - 3].decode(errors="ignore") + "…"
