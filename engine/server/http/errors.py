"""Errors in OpenAI's form: ``{"error": {"message", "type", "param", "code"}}``, with the status that clients act on.

A fault of the server is reported without its cause, which goes to the log.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from draftline.engine.errors import (
    ConstraintLimitError,
    DraftlineError,
    InvalidRequestError,
    QueueFullError,
    StepFailedError,
)
from draftline.engine.server.codes import INTERNAL, code_name

logger = logging.getLogger(__name__)

MAX_MESSAGE = 2000
"""Characters of a message. It may quote what a client sent."""

_INVALID = "invalid_request_error"

_STATUS: Mapping[str, tuple[int, str]] = {
    "INVALID_ARGUMENT": (400, _INVALID),
    "UNAUTHENTICATED": (401, "authentication_error"),
    "PERMISSION_DENIED": (403, "permission_error"),
    "ALREADY_EXISTS": (409, _INVALID),
    "FAILED_PRECONDITION": (409, _INVALID),
    "RESOURCE_EXHAUSTED": (429, "rate_limit_error"),
    INTERNAL: (500, "server_error"),
    "UNAVAILABLE": (503, "service_unavailable_error"),
    "DEADLINE_EXCEEDED": (504, "timeout_error"),
    "ABORTED": (504, "timeout_error"),
}
"""The status and type of each code."""


class HttpError(DraftlineError):
    """An error that only HTTP has: a path that does not exist, a body that is too large.

    Attributes:
        status: the HTTP status.
        code: OpenAI's code, or None.
        param: the wrong field, or None.
        report: the name of the ``google.rpc.Code`` in reports.
        retry_after_s: seconds after which to try again; None if that does not help.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        report: str = "INVALID_ARGUMENT",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.report = report
        self.retry_after_s = retry_after_s


class DisconnectedError(DraftlineError):
    """The client has closed its connection. It gets no answer."""


def status_of(error: BaseException) -> int:
    """The HTTP status of ``error``."""
    if isinstance(error, HttpError):
        return error.status
    if isinstance(error, ConstraintLimitError):
        return 400  # to send it again does not help, and clients repeat what gets 429
    return _STATUS[code_name(error)][0]


def headers_of(error: BaseException) -> dict[str, str]:
    """The headers that tell a client when to try again, or how to authenticate."""
    seconds = error.retry_after_s if isinstance(error, QueueFullError | HttpError) else None
    if seconds is not None:
        return {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(round(seconds * 1000))}
    match status_of(error):
        case 401:
            return {"www-authenticate": "Bearer"}
        case 503:
            return {"retry-after": "1"}
        case _:
            return {}


def error_body(error: BaseException) -> dict[str, Any]:
    """The body that reports ``error``. A fault of the server is also logged."""
    message, code, param, kind = str(error), None, None, _INVALID
    match error:
        case HttpError():
            code, param = error.code, error.param
        case InvalidRequestError():
            if error.violations:
                first = error.violations[0]
                param, code = first.field, first.reason.lower() or None
        case ConstraintLimitError():
            code = "constraint_limit"
        case _:
            name = code_name(error)
            kind = _STATUS[name][1]
            code = "invalid_api_key" if name == "UNAUTHENTICATED" else name.lower()
            if name == INTERNAL:
                if not isinstance(
                    error, StepFailedError
                ):  # the engine has logged it, once for all requests of the step
                    logger.error("a request failed", exc_info=error)
                message = str(StepFailedError())
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "…"
    # A body is UTF-8, and a client's text may have half of a surrogate pair.
    message = message.encode(errors="replace").decode()
    param = None if param is None else param[:MAX_MESSAGE].encode(errors="replace").decode()
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
