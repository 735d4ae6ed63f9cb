"""Read PEM files of certificates, keys and authorities, and check them: gRPC's own errors name no file."""

from __future__ import annotations

import ssl
from pathlib import Path

from draftline.engine.errors import CertificateError


def read_pair(chain: Path, key: Path) -> tuple[bytes, bytes]:
    """Read a certificate chain, and the private key of its first certificate.

    Raises:
        CertificateError: a file cannot be read or is not PEM, or they do not belong together.
    """
    contents = _read(chain), _read(key)
    for path, content, label in zip((chain, key), contents, (b"CERTIFICATE", b"PRIVATE KEY"), strict=True):
        if label not in content:
            raise CertificateError(f"{path}: has no {label.decode().lower()} in PEM")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, password="")
    except (ssl.SSLError, ValueError) as error:
        # In the middle of a rotation, one file is the new one already.
        reason = getattr(error, "reason", None) or str(error)
        raise CertificateError(f"{chain} and {key} are no pair: {reason.lower()}") from error
    except OSError as error:
        raise CertificateError(f"cannot read the certificate's files: {error.strerror}") from error
    return contents


def read_authorities(path: Path) -> bytes:
    """Read the certificates of authorities.

    Raises:
        CertificateError: the file cannot be read, or has none.
    """
    content = _read(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except OSError as error:  # an SSLError is one
        raise CertificateError(f"{path}: has no certificate authorities in PEM") from error
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"cannot read {path}: {error.strerror}") from error
