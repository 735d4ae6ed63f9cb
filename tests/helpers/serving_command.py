"""``assert_serves``: a command that serves the fake model answers a request, and ends in order on SIGTERM."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

from free_ports import free_ports
from patience import PATIENCE_S

from draftline import Client, SamplingParams


def assert_serves(start: Callable[[int], subprocess.Popen[str]]) -> None:
    """``start`` runs the command, which serves on the port that it is given, with its standard error as a pipe."""
    [port] = free_ports(1)
    server = start(port)
    with Client(f"127.0.0.1:{port}") as client:
        [output] = client.generate(["abc"], SamplingParams(max_tokens=4), timeout=PATIENCE_S)
    assert output.outputs[0].text == "abca"
    server.send_signal(signal.SIGTERM)
    _, err = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 0
    assert "Traceback" not in err
