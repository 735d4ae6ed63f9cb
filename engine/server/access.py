"""Who may call: bearer tokens from a file, and what each may do.

The file is YAML, and is read anew when it has changed::

    tokens:
      - name: extraction          # shown in logs and metrics
        token: 5kx2…              # or sha256: its digest in hex, so that the file holds no secret
        max_requests: 64          # at once; unlimited where unset
        requests_per_minute: 600  # likewise
      - name: ops
        token: 9vq1…
        admin: true               # may call AdminService
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from draftline.engine.errors import PermissionDeniedError, QueueFullError, TokenFileError, UnauthenticatedError
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
    admin: bool = False

    @model_validator(mode="after")
    def _one_secret(self) -> _Token:
        if (self.token is None) == (self.sha256 is None):
            raise ValueError("set exactly one of token and sha256")
        return self

    @property
    def digest(self) -> bytes:
        """What is compared: neither it nor the time of comparing tells anything of the token."""
        if self.token is None:
            return bytes.fromhex(self.sha256 or "")
        return hashlib.sha256(self.token.encode()).digest()


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tokens: list[_Token] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_differ(self) -> _File:
        names = [entry.name for entry in self.tokens]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"two tokens are named {min(twice)}")
        return self


class Caller:
    """Whoever has a token, and how much they are asking for. One event loop's.

    Attributes:
        name: shown in logs and metrics; empty where everybody may call.
        admin: whether AdminService answers them.
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
        """Nothing is running; a minute's requests may come at once."""
        self.name = name
        self.admin = admin
        self._max_requests = max_requests
        self._per_minute = requests_per_minute
        self._clock = clock
        self._running = 0
        self._allowance = float(requests_per_minute or 0)
        self._counted_at = clock()

    def enter(self) -> None:
        """Begin a request, which must `leave` when it is over.

        Raises:
            QueueFullError: that would be more than the token allows.
        """
        if self._max_requests is not None and self._running >= self._max_requests:
            raise QueueFullError(f"{self._running} requests of this token run, which is its limit", _BUSY_RETRY_S)
        if self._per_minute is not None:
            now = self._clock()
            earned = (now - self._counted_at) * self._per_minute / 60
            self._allowance = min(float(self._per_minute), self._allowance + earned)
            self._counted_at = now
            if self._allowance < 1:
                wait = (1 - self._allowance) * 60 / self._per_minute
                raise QueueFullError(f"this token may start {self._per_minute} requests a minute", wait)
            self._allowance -= 1
        self._running += 1

    def leave(self) -> None:
        """End what one `enter` began."""
        self._running -= 1

    def require_admin(self) -> None:
        """Raise `PermissionDeniedError` unless the caller may administer the server."""
        if not self.admin:
            raise PermissionDeniedError("this needs a token with admin rights")

    def renewed(self, max_requests: int | None, requests_per_minute: int | None, admin: bool) -> None:
        """Take other limits, without forgetting what is running."""
        self._max_requests, self.admin = max_requests, admin
        if requests_per_minute != self._per_minute:
            self._per_minute, self._allowance = requests_per_minute, float(requests_per_minute or 0)


class Access(Protocol):
    """Knows callers by the metadata of their calls."""

    def caller(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller:
        """Whose call has this metadata.

        Raises:
            UnauthenticatedError: nobody's who is known.
        """
        ...


class OpenAccess:
    """Everybody may call."""

    def __init__(self, *, admin: bool) -> None:
        """``admin``: whether everybody may administer, too."""
        self._everybody = Caller("", admin=admin)

    def caller(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller:
        """See `Access`."""
        return self._everybody


class TokenAccess:
    """Whoever has a token of the file."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            TokenFileError: it cannot be read, or is wrong; the message says where.
        """
        self._path = path
        self._read_at = self._changed()
        self._complaint = ""
        self._callers: dict[str, Caller] = {}
        self._digests: list[tuple[bytes, Caller]] = []
        self._take(self._read())

    def caller(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller:
        """See `Access`."""
        self._renew()
        authorization = next((str(value) for name, value in metadata or () if name == "authorization"), "")
        if not authorization.lower().startswith(_BEARER):
            raise UnauthenticatedError("a token is needed: metadata 'authorization: Bearer …'")
        digest = hashlib.sha256(authorization[len(_BEARER) :].strip().encode()).digest()
        found: Caller | None = None
        for known, caller in self._digests:  # all of them, so that the time tells nothing
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise UnauthenticatedError("this token is not known")
        return found

    def _renew(self) -> None:
        try:
            changed = self._changed()
            if changed == self._read_at:
                return
            self._read_at = changed
            self._take(self._read())
        except TokenFileError as error:
            if str(error) != self._complaint:  # once, not at every call
                self._complaint = str(error)
                logger.warning("%s; the tokens that were read before stay in use", error)
            return
        self._complaint = ""
        logger.info("tokens read anew from %s", self._path)

    def _take(self, entries: list[_Token]) -> None:
        """Know these callers and no others; those known before go on where they were."""
        callers = {}
        for entry in entries:
            caller = self._callers.get(entry.name) or Caller(entry.name, admin=entry.admin)
            caller.renewed(entry.max_requests, entry.requests_per_minute, entry.admin)
            callers[entry.name] = caller
        self._callers = callers
        self._digests = [(entry.digest, callers[entry.name]) for entry in entries]

    def _changed(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError as error:
            raise TokenFileError(f"{self._path}: {error.strerror}") from error

    def _read(self) -> list[_Token]:
        try:
            return _File.model_validate(yaml.safe_load(self._path.read_text(encoding="utf-8"))).tokens
        except OSError as error:
            raise TokenFileError(f"{self._path}: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError):
            raise TokenFileError(f"{self._path}: is not YAML") from None  # whose message may quote a token
        except ValidationError as error:
            # Not the descriptions, which quote values.
            where = ", ".join(dict.fromkeys(v.field or "the file" for v in violations(error)))
            problem = error.errors(include_input=False, include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise TokenFileError(f"{self._path}: {where}: {problem}") from None
