"""gRPC's TLS credentials, made of a `Certificate`."""

from __future__ import annotations

import grpc

from draftline.engine.server.tls import Certificate, Pem


def server_credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """The credentials of a server's port. Every handshake uses the certificate's current files."""
    used = certificate.current()

    def newer() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake, on its own threads. None keeps the configuration."""
        nonlocal used
        current = certificate.current()
        if current is used:
            return None
        used = current
        return _configuration(current)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(used),
        newer,  # type: ignore[arg-type]  # gRPC documents None, its stubs do not
        require_client_authentication=used.client_authorities is not None,
    )


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.chain)], pem.client_authorities)
