"""``Connection``: how the command line connects to a server: TLS and a token."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import grpc
from pydantic import Field, model_validator
from typing_extensions import override

from draftline.engine.client.access import call_metadata
from draftline.engine.client.channel import OWN_CONNECTION
from draftline.engine.client.tls import Tls
from draftline.engine.config import EngineConfig
from draftline.engine.errors import InvalidRequestError, UsageError
from draftline.engine.options import Options, flag

TOKEN_VARIABLE = "DRAFTLINE_TOKEN"
"""The environment variable of the token. Other users of a machine can read a command line."""


def check_no_engine_options(engine: EngineConfig, server: str = "--server", *, used: Collection[str] = ()) -> None:
    """Raise `UsageError` if an option of the engine is given, be it the default: the server at ``server`` has its own.

    Those named in ``used`` are for the command itself.
    """
    if given := sorted(engine.model_fields_set.difference(used)):
        raise UsageError(f"{', '.join(map(flag, given))}: the server at {server} has its own engine")


class Connection(Options):
    """The options of a connection to a server."""

    tls: bool = Field(default=False, description="use TLS, and trust the system's certificate authorities")
    ca: str | None = Field(
        default=None, min_length=1, description="use TLS, and trust the authorities in this PEM file"
    )
    client_cert: str | None = Field(
        default=None, min_length=1, description="PEM file of the client's certificate, for mTLS"
    )
    client_key: str | None = Field(default=None, min_length=1, description="PEM file of its private key")
    token: str | None = Field(
        default=None, min_length=1, description=f"the bearer token; {TOKEN_VARIABLE} in the environment where unset"
    )

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Connection:
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("client_cert and client_key: set both, or neither")
        return self

    def check_unset(self, target: str = "--server") -> None:
        """Raise `UsageError` if an option of the connection is given: there is none without ``target``."""
        if self != Connection():
            raise UsageError(f"--tls, --ca, --client-cert, --client-key and --token need {target}")

    @property
    def uses_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.tls or self.ca is not None or self.client_cert is not None

    def channel(self, address: str) -> grpc.Channel:
        """A channel to a server.

        Raises:
            UsageError: a file cannot be used.
        """
        options = [OWN_CONNECTION, ("grpc.max_receive_message_length", -1)]
        tls = self.certificates()
        if tls is None:
            return grpc.insecure_channel(address, options)
        return grpc.secure_channel(address, tls.credentials(), options)

    def certificates(self) -> Tls | None:
        """The certificates, which can be used; None without TLS.

        Raises:
            UsageError: a file cannot be used.
        """
        if not self.uses_tls:
            return None
        tls = Tls(self.ca, self.client_cert, self.client_key)
        try:
            tls.credentials()
        except InvalidRequestError as error:
            [wrong] = error.violations
            option = "--ca" if wrong.field == "tls.ca" else "--client-cert"
            raise UsageError(f"{option}: {wrong.description}") from error
        return tls

    @property
    def bearer_token(self) -> str | None:
        """The token, or that of the environment, where an empty variable is none."""
        return self.token or os.environ.get(TOKEN_VARIABLE) or None

    def token_interceptor(self) -> TokenInterceptor:
        """Adds the token to every call."""
        return TokenInterceptor(self.bearer_token)


class _Details(NamedTuple):
    """A call's details, as gRPC's interceptors read them."""

    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str | bytes]] | None
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class TokenInterceptor(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Adds a bearer token to every call with one request."""

    def __init__(self, token: str | None) -> None:
        """``token`` is None where calls have none.

        Raises:
            InvalidRequestError: no call can have it.
        """
        self._metadata = call_metadata(token)

    @override
    def intercept_unary_unary(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        return continuation(self._with_token(client_call_details), request)

    @override
    def intercept_unary_stream(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        return continuation(self._with_token(client_call_details), request)

    def _with_token(self, details: Any) -> _Details:
        return _Details(
            details.method,
            details.timeout,
            (*(details.metadata or ()), *self._metadata),
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
