"""The server's certificate, from PEM files. Changed files are read again, so that a rotation needs no restart."""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

from draftline.engine.errors import CertificateError
from draftline.engine.server.file_version import FileVersion, file_version
from draftline.engine.server.pem import read_authorities, read_pair

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of a certificate's files.

    Attributes:
        chain: the certificate chain.
        key: the private key of its first certificate.
        client_authorities: the authorities of clients' certificates; None if clients need no certificate.
    """

    chain: bytes
    key: bytes
    client_authorities: bytes | None


class Certificate:
    """A certificate chain with its key, and the authorities of clients' certificates. Thread-safe."""

    def __init__(self, chain: Path, key: Path, client_authorities: Path | None) -> None:
        """Read the PEM files. ``client_authorities`` is None if clients need no certificate.

        Raises:
            CertificateError: a file cannot be read, or is not PEM.
        """
        self._chain = chain
        self._key = key
        self._authorities = client_authorities
        self._lock = threading.Lock()
        self._versions = self._current_versions()
        self._refused: tuple[FileVersion, ...] | None = None  # of files that could not be used
        self._last_warning = ""
        self._pem = self._read()

    def current(self) -> Pem:
        """The contents of the files: the same object until they change.

        If changed files cannot be read, a warning is logged and the previous contents stay in use.
        """
        with self._lock:
            versions: tuple[FileVersion, ...] = ()
            try:
                versions = self._current_versions()
                if versions == self._versions:
                    self._last_warning = ""
                    return self._pem
                if versions == self._refused:
                    return self._pem
                self._pem = self._read()
            except CertificateError as error:
                if str(error) != self._last_warning:  # once, not at every handshake
                    self._last_warning = str(error)
                    logger.warning("%s; the previous certificate stays in use", error)
                self._refused = versions
                return self._pem
            self._versions = versions
            self._last_warning = ""
        logger.info("reloaded the certificate from %s", self._chain)
        return self._pem

    def context(self) -> ssl.SSLContext:
        """A server's context with the current files, for HTTP/1.1.

        Raises:
            CertificateError: the files cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._chain, self._key, password="")
            if self._authorities is not None:
                context.load_verify_locations(self._authorities)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            raise CertificateError(f"cannot use {self._chain} and {self._key}: {error}") from error
        return context

    def _current_versions(self) -> tuple[FileVersion, ...]:
        paths = (self._chain, self._key, *([self._authorities] if self._authorities else []))
        try:
            return tuple(map(file_version, paths))
        except OSError as error:
            raise CertificateError(f"cannot read {error.filename}: {error.strerror}") from error

    def _read(self) -> Pem:
        chain, key = read_pair(self._chain, self._key)
        return Pem(chain, key, None if self._authorities is None else read_authorities(self._authorities))
