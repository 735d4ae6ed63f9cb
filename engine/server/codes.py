"""The code of each error, by its name in ``google.rpc.Code``: the same in every face, in reports and in metrics."""

from __future__ import annotations

from collections.abc import Mapping

from draftline.engine.errors import (
    ConstraintLimitError,
    DeadlineExceededError,
    DuplicateRequestError,
    EngineStoppedError,
    InvalidRequestError,
    PermissionDeniedError,
    ProfilerError,
    QueueFullError,
    StalledReaderError,
    UnauthenticatedError,
)

OK = "OK"
CANCELLED = "CANCELLED"
DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
INTERNAL = "INTERNAL"

_CODES: Mapping[type[BaseException], str] = {
    InvalidRequestError: "INVALID_ARGUMENT",
    QueueFullError: "RESOURCE_EXHAUSTED",
    ConstraintLimitError: "RESOURCE_EXHAUSTED",
    DuplicateRequestError: "ALREADY_EXISTS",
    EngineStoppedError: "UNAVAILABLE",
    DeadlineExceededError: DEADLINE_EXCEEDED,
    StalledReaderError: "ABORTED",
    UnauthenticatedError: "UNAUTHENTICATED",
    PermissionDeniedError: "PERMISSION_DENIED",
    ProfilerError: "FAILED_PRECONDITION",
}


def code_name(error: BaseException) -> str:
    """The code of ``error``. An error that is not in the table is a fault of the server: INTERNAL."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), INTERNAL)
