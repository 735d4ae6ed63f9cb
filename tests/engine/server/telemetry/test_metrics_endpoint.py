"""The metrics port: connections that ask for nothing cost neither threads nor lines of the log."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from patience import PATIENCE_S
from prometheus_client import CollectorRegistry

from draftline.engine.server.telemetry import metrics_endpoint
from draftline.engine.server.telemetry.metrics_endpoint import MetricsEndpoint

SCRAPE = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def endpoint() -> Iterator[MetricsEndpoint]:
    """An endpoint without metrics."""
    endpoint = MetricsEndpoint("127.0.0.1", 0, CollectorRegistry())
    yield endpoint
    endpoint.close()


def read_all(endpoint: MetricsEndpoint, sent: bytes) -> bytes:
    """What a client receives until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=PATIENCE_S) as client:
        client.sendall(sent)
        return b"".join(iter(lambda: client.recv(4096), b""))


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nhost"])
def test_a_silent_connection_is_closed(
    sent: bytes,
    endpoint: MetricsEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(metrics_endpoint, "REQUEST_TIMEOUT_S", 0.1)
    assert read_all(endpoint, sent) == b""
    assert read_all(endpoint, SCRAPE).startswith(b"HTTP/1.0 200 ")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nhost", b"\x16\x03\x01\r\n\r\n"])
def test_a_probe_that_resets_its_connection_is_no_error(
    sent: bytes, endpoint: MetricsEndpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(4):  # more would wait for the endpoint, which queues five
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=PATIENCE_S) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(sent)
    assert read_all(endpoint, SCRAPE).startswith(b"HTTP/1.0 200 ")
    assert capfd.readouterr().err == ""
