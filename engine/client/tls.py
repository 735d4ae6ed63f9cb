"""``Tls``: the certificates of a client's connection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from draftline.engine.errors import CertificateError, FieldViolation, InvalidRequestError
from draftline.engine.server.pem import read_authorities, read_pair


@dataclass(frozen=True, slots=True)
class Tls:
    """The certificates of a TLS connection. Each option is the path of a PEM file.

    Attributes:
        ca: the authorities that are trusted to issue the server's certificate; gRPC's own list where None.
        cert: the client's certificate chain, for a server that asks for one.
        key: the private key of ``cert``.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files, and make a channel's credentials.

        Raises:
            InvalidRequestError: a file cannot be read or used, or ``cert`` and ``key`` are not set together.
        """
        try:
            ca = None if self.ca is None else read_authorities(Path(self.ca))
        except CertificateError as error:
            raise InvalidRequestError(FieldViolation("tls.ca", str(error))) from error
        if self.cert is None and self.key is None:
            return grpc.ssl_channel_credentials(ca)
        if self.cert is None or self.key is None:
            missing, given = ("cert", "key") if self.cert is None else ("key", "cert")
            raise InvalidRequestError(FieldViolation(f"tls.{missing}", f"is missing; tls.{given} is set"))
        try:
            chain, key = read_pair(Path(self.cert), Path(self.key))
        except CertificateError as error:
            raise InvalidRequestError(FieldViolation("tls.cert", str(error))) from error
        return grpc.ssl_channel_credentials(ca, key, chain)
