"""Authentication by bearer tokens from a file, and the limits and rights of each token.

The file is YAML. It is read again when it has changed::

    tokens:
      - name: extraction          # shown in logs and metrics
        token: 5kx2…              # or sha256: its digest in hex, so that the file holds no secret
        max_requests: 64          # in flight at once; unlimited if unset
        requests_per_minute: 600  # unlimited if unset
        max_tokens: 2048          # of one output; a request without max_tokens gets at most as many
        max_priority: 0           # unlimited if unset
        weight: 2                 # of its share of the engine beside other callers; 1 if unset
      - name: ops
        token: 9vq1…
        admin: true               # may call AdminService
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import override

from draftline.engine.errors import (
    FieldViolation,
    PermissionDeniedError,
    QueueFullError,
    TokenFileError,
    UnauthenticatedError,
    unreadable,
)
from draftline.engine.options import suggestion
from draftline.engine.params import DEFAULT_MAX_TOKENS
from draftline.engine.protocol import GenerateRequest
from draftline.engine.server.file_version import FileVersion, file_version
from draftline.engine.server.limits import refuse
from draftline.engine.server.yaml_text import RepeatedKeyError, read_yaml
from draftline.engine.validation import violations

logger = logging.getLogger(__name__)

_BEARER = "bearer "
_BUSY_RETRY_S = 1.0


class _Token(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=64, pattern=r"^[\w.-]+$")
    token: str | None = Field(default=None, min_length=16)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{64}$")
    max_requests: int | None = Field(default=None, ge=1)
    requests_per_minute: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_priority: int | None = None
    weight: float = Field(default=1.0, gt=0, le=1000)
    admin: bool = False

    @model_validator(mode="after")
    def _one_secret(self) -> _Token:
        if (self.token is None) == (self.sha256 is None):
            raise ValueError("set exactly one of token and sha256")
        return self

    @property
    def digest(self) -> bytes:
        """The SHA-256 digest of the token.

        Comparing digests reveals nothing about the token, nor does the time it takes.
        """
        if self.token is None:
            return bytes.fromhex(self.sha256 or "")
        return hashlib.sha256(self.token.encode()).digest()


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tokens: list[_Token] = Field(min_length=1)

    @model_validator(mode="after")
    def _unique_names(self) -> _File:
        names = [entry.name for entry in self.tokens]
        duplicates = {name for name in names if names.count(name) > 1}
        if duplicates:
            raise ValueError(f"two tokens are named {min(duplicates)}")
        return self


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request of a caller may ask for.

    Attributes:
        max_tokens: tokens of an output; None for the model's limit.
        max_priority: None for any.
        weight: of the caller's share of the engine.
    """

    max_tokens: int | None = None
    max_priority: int | None = None
    weight: float = 1.0


class Caller:
    """The owner of a token, with the token's limits and its requests in flight. Only one event loop may use it.

    Attributes:
        name: shown in logs and metrics; empty if the server knows no tokens.
        admin: whether the caller may use AdminService.
        limits: the bounds of each of its requests.
    """

    def __init__(
        self,
        name: str,
        *,
        admin: bool,
        max_requests: int | None = None,
        requests_per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A caller without requests, which may start a whole minute's requests at once."""
        self.name = name
        self.limits = RequestLimits()
        self.admin = admin
        self._max_requests = max_requests
        self._per_minute = requests_per_minute
        self._clock = clock
        self._in_flight = 0
        self._allowance = float(requests_per_minute or 0)
        self._counted_at = clock()

    def admit(self) -> None:
        """Count one request as in flight, until `release`.

        Raises:
            QueueFullError: the request would exceed a limit of the token.
        """
        if self._max_requests is not None and self._in_flight >= self._max_requests:
            raise QueueFullError(f"{self._in_flight} requests of this token run, which is its limit", _BUSY_RETRY_S)
        if self._per_minute is not None:
            now = self._clock()
            earned = (now - self._counted_at) * self._per_minute / 60
            self._allowance = min(float(self._per_minute), self._allowance + earned)
            self._counted_at = now
            if self._allowance < 1:
                wait = (1 - self._allowance) * 60 / self._per_minute
                raise QueueFullError(f"this token may start {self._per_minute} requests a minute", wait)
            self._allowance -= 1
        self._in_flight += 1

    def within_limits(self, request: GenerateRequest, peer: str) -> GenerateRequest:
        """A request as the engine gets it: with its caller, its share, and the bounds of the token.

        Args:
            request: the client's request.
            peer: the client's address, which stands for a caller without a token.

        Raises:
            InvalidRequestError: it asks for more than the token allows.
        """
        limits, sampling = self.limits, request.sampling
        wrong: list[FieldViolation] = []
        if limits.max_priority is not None and request.priority > limits.max_priority:
            wrong.append(FieldViolation("priority", f"this token allows at most {limits.max_priority}"))
        if limits.max_tokens is not None:
            if sampling.max_tokens is None:
                cap = min(limits.max_tokens, DEFAULT_MAX_TOKENS)
                sampling = sampling.model_copy(update={"max_tokens": cap})
            elif sampling.max_tokens > limits.max_tokens:
                wrong.append(FieldViolation("sampling.max_tokens", f"this token allows at most {limits.max_tokens}"))
        refuse(*wrong)
        return replace(request, sampling=sampling, caller=self.identity(peer), weight=limits.weight)

    def identity(self, peer: str) -> str:
        """The name of the token, else the client's address, without its port: a client may have many connections."""
        return self.name or peer.rpartition(":")[0]

    def release(self) -> None:
        """End one admitted request."""
        self._in_flight -= 1

    def require_admin(self) -> None:
        """Raise `PermissionDeniedError` unless the caller may administer the server."""
        if not self.admin:
            raise PermissionDeniedError("this needs a token with admin rights")

    def set_limits(self, max_requests: int | None, requests_per_minute: int | None, admin: bool) -> None:
        """Change the limits and rights. Requests in flight still count."""
        self._max_requests, self.admin = max_requests, admin
        if requests_per_minute != self._per_minute:
            self._per_minute, self._allowance = requests_per_minute, float(requests_per_minute or 0)


class Access(Protocol):
    """Authenticates calls."""

    def caller(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller:
        """Authenticate a call by its metadata (headers): pairs of a name in lower case and a value.

        Raises:
            UnauthenticatedError: the metadata has no token, or an unknown one.
        """
        ...


class OpenAccess(Access):
    """Access without tokens: every client is the same caller."""

    def __init__(self, *, admin: bool) -> None:
        """``admin``: whether clients may also administer the server."""
        self._caller = Caller("", admin=admin)

    @override
    def caller(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller:
        return self._caller


class TokenAccess(Access):
    """Access for the tokens of a file."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            TokenFileError: the file cannot be read, or is invalid; the message says where.
        """
        self._path = path
        self._version = self._current_version()
        self._last_warning = ""
        self._callers: dict[str, Caller] = {}
        self._digests: list[tuple[bytes, Caller]] = []
        self._set_tokens(self._read())

    @override
    def caller(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller:
        self._reload_if_changed()
        authorization = next((str(value) for name, value in metadata or () if name == "authorization"), "")
        if not authorization.lower().startswith(_BEARER):
            raise UnauthenticatedError("a token is needed: send authorization: Bearer …")
        digest = hashlib.sha256(authorization[len(_BEARER) :].strip().encode()).digest()
        found: Caller | None = None
        for known, caller in self._digests:  # compare all digests, so that the time reveals nothing
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise UnauthenticatedError("this token is not known")
        return found

    def _reload_if_changed(self) -> None:
        try:
            version = self._current_version()
            if version == self._version:
                return
            self._version = version
            self._set_tokens(self._read())
        except TokenFileError as error:
            if str(error) != self._last_warning:  # once, not at every call
                self._last_warning = str(error)
                logger.warning("%s; the previous tokens stay in use", error)
            return
        self._last_warning = ""
        logger.info("reloaded tokens from %s", self._path)

    def _set_tokens(self, entries: list[_Token]) -> None:
        """Replace the tokens. Callers that keep their name keep their requests in flight."""
        callers = {}
        for entry in entries:
            caller = self._callers.get(entry.name) or Caller(entry.name, admin=entry.admin)
            caller.set_limits(entry.max_requests, entry.requests_per_minute, entry.admin)
            caller.limits = RequestLimits(entry.max_tokens, entry.max_priority, entry.weight)
            callers[entry.name] = caller
        self._callers = callers
        self._digests = [(entry.digest, callers[entry.name]) for entry in entries]

    def _current_version(self) -> FileVersion:
        try:
            return file_version(self._path)
        except OSError as error:
            raise TokenFileError(f"{self._path}: {error.strerror}") from error

    def _read(self) -> list[_Token]:
        try:
            content = read_yaml(self._path.read_text(encoding="utf-8"))
            if not isinstance(content, dict) or not content or content in ({"tokens": None}, {"tokens": []}):
                raise TokenFileError(f"{self._path}: has no tokens; it needs a list of them: tokens: [...]")
            return _File.model_validate(content).tokens
        except (OSError, UnicodeDecodeError) as error:
            raise TokenFileError(f"{self._path}: {unreadable(error)}") from error
        except RepeatedKeyError as error:
            raise TokenFileError(f"{self._path}: line {error.line}: {error.key}: is set twice") from None
        except yaml.YAMLError as error:  # its message may quote a token
            mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
            line = f"line {mark.line + 1}: " if mark else ""
            raise TokenFileError(f"{self._path}: {line}is not YAML") from None
        except ValidationError as error:
            raise TokenFileError(f"{self._path}: {'; '.join(_problems(error))}") from None


def _problems(error: ValidationError) -> Iterator[str]:
    """Each wrong field with its reason. The descriptions of the violations are not used: they quote values."""
    details = error.errors(include_input=False, include_url=False)
    for violation, detail in zip(violations(error), details, strict=True):
        problem = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "model_type":
            problem = "must be a mapping"
        if detail["type"] == "extra_forbidden":
            *parents, name = detail["loc"]
            known = (_Token if parents else _File).model_fields
            problem = f"is not a field{suggestion(str(name), known)}"
        yield f"{violation.field or 'the file'}: {problem}"
