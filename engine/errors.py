"""The errors a caller can meet. Each says what is wrong and where; the gRPC front maps each class to one status code."""

from __future__ import annotations

from dataclasses import dataclass


class DraftlineError(Exception):
    """Base of all errors that Draftline raises on purpose."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One invalid field of a request: its path (``sampling.top_p``) and what is wrong with it."""

    field: str
    description: str


class InvalidRequestError(DraftlineError, ValueError):
    """A request that cannot be served as asked (gRPC INVALID_ARGUMENT). Lists every violated field."""

    def __init__(self, *violations: FieldViolation) -> None:
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in violations))
        self.violations = violations

    def __reduce__(self) -> tuple[type[InvalidRequestError], tuple[FieldViolation, ...]]:
        """For pickle: an exception is made again of its arguments."""
        return type(self), self.violations


class CannotListenError(DraftlineError):
    """An address cannot be listened on; the message says which and why."""


class CertificateError(DraftlineError):
    """A certificate or its key cannot be used; the message says which and why."""


class TokenFileError(DraftlineError):
    """A file of tokens cannot be used; the message says where it is wrong, and quotes nothing."""


class MissingExtraError(DraftlineError):
    """An option needs a part of Draftline that was not installed."""

    def __init__(self, option: str, extra: str) -> None:
        super().__init__(f"{option} needs more packages: pip install 'draftline[{extra}]'")


class DuplicateRequestError(DraftlineError, ValueError):
    """A request id that is already running (gRPC ALREADY_EXISTS)."""


class QueueFullError(DraftlineError):
    """The waiting queue is full (gRPC RESOURCE_EXHAUSTED); try again after ``retry_after_s`` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type[QueueFullError], tuple[str, float]]:
        """See `InvalidRequestError`."""
        return type(self), (str(self), self.retry_after_s)


class DeadlineExceededError(DraftlineError):
    """The time that a request had is over (gRPC DEADLINE_EXCEEDED)."""


class StalledReaderError(DraftlineError):
    """A client has stopped reading what it asked for (gRPC ABORTED)."""


class UnauthenticatedError(DraftlineError):
    """A call without a token that the server knows (gRPC UNAUTHENTICATED)."""


class PermissionDeniedError(DraftlineError):
    """A caller may not do this (gRPC PERMISSION_DENIED)."""


class EngineStoppedError(DraftlineError):
    """The engine is draining, has stopped, or cannot be reached (gRPC UNAVAILABLE)."""


class CallFailedError(DraftlineError):
    """A call to a server failed in a way that no other class names; the message begins with the code."""


class ProfilerError(DraftlineError):
    """The steps cannot be profiled now (gRPC FAILED_PRECONDITION)."""


class DeviceLostError(DraftlineError):
    """The device computes nothing any more; the engine cannot go on."""


class StepFailedError(DraftlineError):
    """A fault in a step ended this request (gRPC INTERNAL); the engine goes on."""


class UsageError(DraftlineError):
    """The command line, or the configuration file, asks for something that makes no sense."""
