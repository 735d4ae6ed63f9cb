"""Servers whose model has two ranks: when one dies or hangs, clients get UNAVAILABLE and the server ends with one error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from exact_models import write_model
from patience import PATIENCE_S, wait_until

from draftline import Client, EngineStoppedError, RetryPolicy, SamplingParams
from draftline.engine.cli.serve import LISTENING, READY

Server = tuple[subprocess.Popen[str], str]

_FOLLOWER = b"draftline.engine.parallel.follower"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server of a small model on two ranks; returns the process and its address."""
    write_model(tmp_path, "llama-64")
    servers: list[subprocess.Popen[str]] = []

    def start(*options: str) -> Server:
        command = [
            sys.executable,
            "-m",
            "draftline",
            "serve",
            "--port",
            "0",
            "--model",
            str(tmp_path),
            "--device",
            "cpu",
        ]
        command += ["--dtype", "float32", "--tensor-parallel-size", "2", "--kv-cache-memory-gib", "0.05", *options]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        servers.append(server)
        assert server.stdout is not None
        address = server.stdout.readline().partition(LISTENING)[2].strip()
        line = server.stdout.readline()
        assert READY in line, line + server.communicate(timeout=PATIENCE_S)[1]
        return server, address

    yield start
    for server in servers:
        server.kill()
        server.communicate()


def descendants(process: int) -> list[int]:
    children = [
        int(child)
        for task in Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return children + [pid for child in children for pid in descendants(child)]


def follower_of(process: int) -> int:
    """The process of rank 1."""
    (pid,) = [pid for pid in descendants(process) if _FOLLOWER in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return pid


def last_words(err: str) -> str:
    """The server's own last line. Processes that it had just started may complain after it."""
    (line,) = [line for line in err.splitlines() if line.startswith("draftline: error: ")]
    return line.removeprefix("draftline: error: the engine stopped after a fault: ")


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("number", "reason", "options"),
    [
        (signal.SIGKILL, "rank 1 ended with -9", ()),
        pytest.param(signal.SIGSTOP, "rank 1 hangs", (), marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, "rank 1 ended with -9", ("--engine-process",), marks=pytest.mark.slow),
    ],
)
def test_a_lost_rank_ends_the_server(
    number: signal.Signals, reason: str, options: tuple[str, ...], serve: Callable[..., Server]
) -> None:
    server, address = serve("--max-num-seqs", "1", *options)
    rank = follower_of(server.pid)
    with Client(address, retry=RetryPolicy(attempts=1)) as client:
        # One after the other: the server is faster than a test that has to wait for a processor.
        *_, last = streams = [client.submit("abc", SamplingParams(max_tokens=700, ignore_eos=True)) for _ in range(50)]
        next(iter(streams[0]))
        os.kill(rank, number)
        with pytest.raises(EngineStoppedError, match="the engine stopped after a fault"):
            for _ in last:
                pass
    _, err = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 1
    assert reason in last_words(err)
    wait_until(lambda: gone(rank))


@pytest.mark.slow
def test_an_idle_server_ends_too(serve: Callable[..., Server]) -> None:
    server, _ = serve()
    os.kill(follower_of(server.pid), signal.SIGKILL)
    _, err = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 1
    assert "rank 1 ended with -9" in last_words(err)


@pytest.mark.slow
def test_ranks_end_with_their_server(serve: Callable[..., Server]) -> None:
    """However it ends. Two servers on one host have nothing in common."""
    (killed, _), (stopped, address) = serve(), serve()
    orphan, other = follower_of(killed.pid), follower_of(stopped.pid)
    killed.kill()
    wait_until(lambda: gone(orphan))
    with Client(address) as client:
        assert (
            client.generate("abc", SamplingParams(max_tokens=5, ignore_eos=True))[0].outputs[0].finish_reason
            == "length"
        )
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(PATIENCE_S) == 0
    wait_until(lambda: gone(other))
