"""uvicorn's TLS context, made of a `Certificate`."""

from __future__ import annotations

import ssl
from contextlib import suppress

from draftline.engine.errors import CertificateError
from draftline.engine.server.tls import Certificate, Pem


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """The context of a server's port. Every handshake uses the certificate's current files."""
    used = certificate.current()
    newest = certificate.context()
    first = newest

    def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called by OpenSSL in each handshake, with or without a name."""
        nonlocal used, newest
        current: Pem = certificate.current()
        if current is not used:
            with suppress(CertificateError):  # the files have changed again: the next handshake reads them
                newest = certificate.context()
                used = current
        if newest is not first:
            connection.context = newest

    first.sni_callback = choose
    return first
