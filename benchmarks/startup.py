"""The start-up time of a server, from the start of its process until it serves.

    python benchmarks/startup.py --shape qwen3-0.6b --cold

The clock starts before the process, and stops when grpc.health.v1 answers SERVING. With --cold the kernel cache is
empty; without it, the second of two starts counts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
from common.arguments import add_model
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftline.engine.bench.contenders.engines import BenchmarkModel
from draftline.engine.bench.contenders.servers import free_port
from draftline.engine.bench.provenance import conditions_of_servers

_POLL_S = 0.02


def seconds_to_ready(command: Sequence[str], port: int, environment: dict[str, str], timeout_s: float) -> float:
    """Start ``command``, wait until it serves on ``port``, and stop it.

    Raises:
        RuntimeError: the process ended, or did not serve within ``timeout_s``.
    """
    start = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_reconnect_backoff_ms", 100)]) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while time.perf_counter() - start < timeout_s:
                if process.poll() is not None:
                    raise RuntimeError(f"the server ended with status {process.returncode}")
                if _serves(health):
                    return time.perf_counter() - start
                time.sleep(_POLL_S)
        raise RuntimeError(f"the server was not ready after {timeout_s} s")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _serves(health: health_pb2_grpc.HealthStub) -> bool:
    try:
        status = health.Check(health_pb2.HealthCheckRequest(), timeout=1).status  # type: ignore[attr-defined]
    except grpc.RpcError:
        return False
    return bool(status == health_pb2.HealthCheckResponse.SERVING)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model(parser)
    parser.add_argument("--cold", action="store_true", help="start once, with an empty kernel cache")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which to give up (default: 300)")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        model = BenchmarkModel.chosen(arguments.model, arguments.shape, Path(folder))
        environment = dict(os.environ)
        if arguments.cold:
            environment["TRITON_CACHE_DIR"] = str(Path(folder) / "kernels")
        for _ in range(1 if arguments.cold else 2):
            port = free_port()
            command = [sys.executable, "-m", "draftline", "serve", "--model", model.checkpoint, "--port", str(port)]
            command += ["--load-format", model.load_format]
            seconds = seconds_to_ready(command, port, environment, arguments.timeout)
    result = {
        **conditions_of_servers(),
        "model": arguments.shape or arguments.model,
        "kernels": "cold" if arguments.cold else "compiled",
        "ready_s": round(seconds, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
