"""``server``: a server of Draftline in a process of its own, whose clients are in others."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import yaml

_DRAIN_S = 10.0
"""Seconds that a server has for its last requests."""


class Served(NamedTuple):
    """A running server: its process id, and its ``host:port`` for gRPC and HTTP. HTTP's is empty unless it is served."""

    pid: int
    grpc: str
    http: str


@contextmanager
def server(options: Mapping[str, object]) -> Iterator[Served]:
    """A server process with these options of the engine and the server, once it serves.

    Raises:
        SystemExit: it ended before, and has printed why.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        yaml.safe_dump(dict(options), config)
        config.flush()
        command = (sys.executable, "-P", "-m", "draftline", "serve", "--port", "0", "--config", config.name)
        quiet = ("--log-level", "warning", "--no-log-requests")
        process = subprocess.Popen([*command, *quiet], stdout=subprocess.PIPE, text=True)
        try:
            yield _ready(process)
        finally:
            process.terminate()
            try:
                process.communicate(timeout=_DRAIN_S)
            except subprocess.TimeoutExpired:
                process.terminate()  # the second ends it at once
                process.communicate()


def _ready(process: subprocess.Popen[str]) -> Served:
    assert process.stdout is not None
    found = Served(process.pid, "", "")
    for line in process.stdout:
        if "listening on " in line:
            scheme, _, address = line.rpartition(" ")[2].strip().rpartition("//")
            found = found._replace(http=address) if scheme else found._replace(grpc=address)
        if "ready: " in line:
            return found
    raise SystemExit(f"the server ended with status {process.wait()}")
