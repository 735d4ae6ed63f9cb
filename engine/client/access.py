"""A server's address or URL and the token for it, as users give them, checked before anything is sent."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from draftline.engine.errors import FieldViolation, InvalidRequestError, kind_of

_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")
"""The schemes of gRPC's addresses. Others, such as ``grpc``, it takes for the name of a host."""

_HOST_PORT = re.compile(r"(?:[^\s/:\[\]]+|\[[^\s/\[\]]+\]):([0-9]{1,5})")
"""A host, an IPv6 address in brackets, and its port."""


def is_grpc_address(address: object) -> bool:
    """Whether gRPC can read an address: ``host:port``, or one with a scheme of gRPC's.

    gRPC itself takes port 443 where there is none, and a port above 65535 modulo 65536.
    """
    if not isinstance(address, str):
        return False
    if address.startswith(_SCHEMES):
        return True
    found = _HOST_PORT.fullmatch(address)
    return found is not None and 0 < int(found[1]) < 1 << 16


def checked_token(token: object) -> str:
    """Return a token that a call's metadata and an HTTP header can hold. The error does not show it: it is a secret.

    Raises:
        InvalidRequestError: it is no text, or has a character that neither can hold.
    """
    if not isinstance(token, str):
        raise InvalidRequestError(FieldViolation("token", f"must be text or None, not {kind_of(token)}"))
    for index, character in enumerate(token):
        if not " " <= character <= "~":
            problem = f"has a character at index {index} that no HTTP header can hold: not printable ASCII"
            raise InvalidRequestError(FieldViolation("token", problem))
    return token


def call_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata of calls with a bearer token; none without one. Raises what `checked_token` raises."""
    return () if token is None else (("authorization", f"Bearer {checked_token(token)}"),)


def http_url_problem(url: str) -> str | None:
    """What is wrong with a URL of an HTTP server; None where nothing is."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return "must be a URL, such as http://localhost:8000"
        _ = parts.port  # reads it
    except ValueError as error:
        return f"is no URL: {error}"
    return None
