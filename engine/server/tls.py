"""The server's certificate, read anew when its files have changed, so that rotating it needs no restart."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc

from draftline.engine.errors import CertificateError

logger = logging.getLogger(__name__)


class Certificate:
    """A certificate chain with its key, and the authorities of clients' certificates where clients must have one."""

    def __init__(self, chain: Path, key: Path, client_authorities: Path | None) -> None:
        """Read the files, all PEM.

        Raises:
            CertificateError: one cannot be read.
        """
        self._chain = chain
        self._key = key
        self._authorities = client_authorities
        self._read_at = self._changed()
        self._current = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """For a server's port."""
        return grpc.dynamic_ssl_server_credentials(
            self._current,
            self._newer,  # type: ignore[arg-type]  # None is what gRPC documents for "no change"
            require_client_authentication=self._authorities is not None,
        )

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        """What is to be used from now on, before each handshake; None: what was. Called on gRPC's threads."""
        try:
            changed = self._changed()
            if changed == self._read_at:
                return None
            self._current = self._read()
        except CertificateError as error:
            logger.warning("%s; the previous certificate stays in use", error)
            return None
        self._read_at = changed
        logger.info("certificate read anew from %s", self._chain)
        return self._current

    def _changed(self) -> tuple[int, ...]:
        paths = (self._chain, self._key, *([self._authorities] if self._authorities else []))
        try:
            return tuple(path.stat().st_mtime_ns for path in paths)
        except OSError as error:
            raise CertificateError(f"cannot read {error.filename}: {error.strerror}") from error

    def _read(self) -> grpc.ServerCertificateConfiguration:
        try:
            chain, key = self._chain.read_bytes(), self._key.read_bytes()
            authorities = self._authorities.read_bytes() if self._authorities else None
        except OSError as error:
            raise CertificateError(f"cannot read {error.filename}: {error.strerror}") from error
        for path, content, what in ((self._chain, chain, b"CERTIFICATE"), (self._key, key, b"PRIVATE KEY")):
            if what not in content:
                raise CertificateError(f"{path}: has no {what.decode().lower()} in PEM")
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities)
