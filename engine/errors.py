"""The errors of the public interface. A server maps each class to one status code; a client maps it back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

_Made = TypeVar("_Made")

CONTEXT_LENGTH_EXCEEDED = "CONTEXT_LENGTH_EXCEEDED"
"""The reason of a prompt that leaves no room in the model's context. OpenAI's clients know it, in lower case, as a
code."""


class DraftlineError(Exception):
    """Base of all errors that Draftline raises deliberately."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One invalid field of a request: its path, such as ``sampling.top_p``, and a description of the problem.

    ``reason`` is a constant for programs where they handle the problem, such as `CONTEXT_LENGTH_EXCEEDED`; else empty.
    """

    field: str
    description: str
    reason: str = ""


class InvalidRequestError(DraftlineError, ValueError):
    """A request is invalid (gRPC INVALID_ARGUMENT). ``violations`` lists every wrong field."""

    def __init__(self, *violations: FieldViolation) -> None:
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in violations))
        self.violations = violations

    def within(self, path: str) -> InvalidRequestError:
        """The same error, for a request at ``path`` in the arguments of a call for many: ``prompts[3]``.

        A field ``text`` becomes ``prompts[3].text``, and ``prompt`` itself ``prompts[3]``.
        """
        if not path:
            return self
        fields = (path if v.field == "prompt" else f"{path}.{v.field}" for v in self.violations)
        return InvalidRequestError(*(replace(v, field=field) for v, field in zip(self.violations, fields, strict=True)))

    def __reduce__(self) -> tuple[type[InvalidRequestError], tuple[FieldViolation, ...]]:
        """For pickle, which rebuilds an exception from its arguments."""
        return type(self), self.violations


class OutputError(DraftlineError, ValueError):
    """An output is no value of its constraint's type. ``text`` is the output."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, which rebuilds an exception from its arguments."""
        return type(self), (str(self), self.text)


class IncompleteOutputError(OutputError):
    """An output ended before its constraint was complete, or has not ended yet."""


class InvalidOutputError(OutputError):
    """A complete output was rejected by a validator that its type has in Python.

    ``violations`` lists the wrong fields.
    """

    def __init__(self, text: str, *violations: FieldViolation) -> None:
        super().__init__(
            "; ".join(f"{v.field}: {v.description}" if v.field else v.description for v in violations), text
        )
        self.violations = violations

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, which rebuilds an exception from its arguments."""
        return type(self), (self.text, *self.violations)


class CannotListenError(DraftlineError):
    """The server cannot listen on an address. The message names the address and the reason."""


class CertificateError(DraftlineError):
    """A certificate or its key cannot be used. The message names the file and the reason."""


class TokenFileError(DraftlineError):
    """A token file cannot be used. The message names the wrong entry, and quotes no token."""


class MissingExtraError(DraftlineError):
    """An option needs an extra of Draftline that is not installed."""

    def __init__(self, option: str, extra: str) -> None:
        super().__init__(f"{option} needs more packages: pip install 'draftline[{extra}]'")


class DuplicateRequestError(DraftlineError, ValueError):
    """A request with the same id is running (gRPC ALREADY_EXISTS)."""


class QueueFullError(DraftlineError):
    """Too many requests wait or run (gRPC RESOURCE_EXHAUSTED). Try again after ``retry_after_s`` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type[QueueFullError], tuple[str, float]]:
        """For pickle, which rebuilds an exception from its arguments."""
        return type(self), (str(self), self.retry_after_s)


class ConstraintLimitError(DraftlineError):
    """A request's constraint cannot follow its text within a limit, which the message names (gRPC RESOURCE_EXHAUSTED).

    To send the request again does not help.
    """


class DeadlineExceededError(DraftlineError):
    """A request timed out (gRPC DEADLINE_EXCEEDED)."""

    def __init__(self, message: str = "the request was not finished within its timeout") -> None:
        super().__init__(message)


class StalledReaderError(DraftlineError):
    """A client has stopped reading its responses (gRPC ABORTED)."""


class UnauthenticatedError(DraftlineError):
    """A call has no token, or an unknown one (gRPC UNAUTHENTICATED)."""


class PermissionDeniedError(DraftlineError):
    """A caller lacks the rights for a call (gRPC PERMISSION_DENIED)."""


class EngineStoppedError(DraftlineError):
    """The engine is loading, draining, stopped or unreachable (gRPC UNAVAILABLE)."""


class CallFailedError(DraftlineError):
    """A call to a server failed with a code that no other class stands for. The message begins with the code."""


class ProfilerError(DraftlineError):
    """The profiler cannot start or stop now (gRPC FAILED_PRECONDITION)."""


class DeviceLostError(DraftlineError):
    """The device has failed, and the engine must end."""


class StepFailedError(DraftlineError):
    """A fault in a step ended this request (gRPC INTERNAL). The engine continues, and its log has the fault."""

    def __init__(self, message: str = "a fault in the engine ended this request; the engine's log says more") -> None:
        super().__init__(message)


def no_unicode(text: str) -> str | None:
    """Why a text is no Unicode text: surrogate code points, which neither tokenizers nor messages can take.

    None if it is one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"character {error.start} is a surrogate code point, which no Unicode text has"
        byte = ord(text[error.start]) - 0xDC00  # as Python decodes bytes of streams and arguments that are not UTF-8
        return f"{problem}; perhaps the byte 0x{byte:02x} of a text that is not UTF-8" if 128 <= byte < 256 else problem
    return None


def check_unicode(field: str, text: str) -> None:
    """Reject surrogate code points, which no Unicode text has: neither tokenizers nor messages can take them.

    Raises:
        InvalidRequestError: the text has one.
    """
    if (problem := no_unicode(text)) is not None:
        raise InvalidRequestError(FieldViolation(field, problem))


def kind_of(value: object) -> str:
    """A value's type in an error: ``None``, or its name with an article."""
    if value is None:
        return "None"
    name = type(value).__name__
    if name == "bytes":
        return name
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Why a file cannot be read as text, without its path."""
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8 text"
    return error.strerror or str(error)


class UsageError(DraftlineError):
    """The command line or the configuration file is wrong."""


@contextmanager
def temporary(make: Callable[[], AbstractContextManager[_Made]]) -> Iterator[_Made]:
    """Make a temporary file or folder with ``make``, and remove it afterwards.

    Raises:
        UsageError: no folder for temporary files can be written.
    """
    try:
        made = make()
    except OSError as error:
        raise UsageError(f"no folder for temporary files can be written (set TMPDIR): {error.strerror}") from error
    with made as it:
        yield it


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A temporary folder. Raises UsageError: see `temporary`."""
    with temporary(TemporaryDirectory) as folder:
        yield Path(folder)


def fork_problem(done: str, instead: str) -> str | None:
    """What is wrong in a fork of the process that was the first to ask this; None in that process.

    Threads do not survive a fork: neither ours nor those of libraries.

    Args:
        done: what that process has done, as "loaded a model"; each has a first process of its own.
        instead: what to do only after the fork, as "load models".
    """
    if _first_process(done) == os.getpid():
        return None
    return (
        f"this process is a fork of one that has {done}, and has none of its threads: start processes with "
        f"multiprocessing's 'spawn', or {instead} only after the fork"
    )


@cache
def _first_process(done: str) -> int:
    """The process that was the first to ask. A fork has its parent's answer."""
    return os.getpid()
