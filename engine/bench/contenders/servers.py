"""Servers of other engines, and of this one, as subprocesses: how each is started, and which version it is.

They speak OpenAI's API, so that one load generator measures them all alike. nano-vLLM has no server. Each runs with the
Python that it is installed for, since engines do not share versions of torch.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from draftline.engine.errors import DraftlineError, UsageError, temporary


class PeerError(DraftlineError):
    """A server of an engine does not start. The message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine with a server.

    Attributes:
        name: its name.
        module: the Python module that tells whether it is installed; empty for a program.
        distribution: the package whose version it is; for a program, its own name.
        command: makes the command from a program or a Python, the model, the port, and whether weights are random.
    """

    name: str
    module: str
    distribution: str
    command: Callable[[str, str, int, bool], list[str]]


def _draftline(python: str, model: str, port: int, random: bool) -> list[str]:
    weights = ["--load-format", "dummy"] if random else []
    command = [python, "-m", "draftline", "serve", "--model", model, "--port", "0", "--http-port", str(port)]
    return [*command, "--no-log-requests", *weights]


def _vllm(python: str, model: str, port: int, random: bool) -> list[str]:
    weights = ["--load-format", "dummy"] if random else []
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port)]
    return [*command, "--enable-prompt-tokens-details", *weights]


def _sglang(python: str, model: str, port: int, random: bool) -> list[str]:
    weights = ["--load-format", "dummy"] if random else []
    command = [python, "-m", "sglang.launch_server", "--model-path", model, "--port", str(port)]
    return [*command, "--enable-cache-report", *weights]


def _llama_cpp(program: str, model: str, port: int, random: bool) -> list[str]:
    if random:
        raise UsageError("llama.cpp reads GGUF files; random weights in a shape are not for it")
    return [program, "--model", model, "--port", str(port), "--parallel", "8", "--cont-batching"]


def _transformers(python: str, model: str, port: int, random: bool) -> list[str]:
    if random:
        raise UsageError("transformers serve loads checkpoints; random weights in a shape are not for it")
    return [python, "-m", "transformers.cli.transformers", "serve", model, "--port", str(port)]


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("draftline", "draftline", "draftline", _draftline),
        Peer("vllm", "vllm", "vllm", _vllm),
        Peer("sglang", "sglang", "sglang", _sglang),
        Peer("llama.cpp", "", "llama-server", _llama_cpp),
        Peer("transformers", "transformers", "transformers", _transformers),
    )
}


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers.

    Attributes:
        url: where.
        version: of its engine.
        command: how it was started, with all of its flags.
    """

    url: str
    version: str | None
    command: Sequence[str]


def program_of(peer: Peer, chosen: str | None) -> str:
    """The Python or program to start a peer with.

    Raises:
        UsageError: it is not installed there.
    """
    if not peer.module:
        found = shutil.which(chosen or peer.distribution)
        if found is None:
            raise UsageError(f"{peer.name}: there is no program {chosen or peer.distribution}")
        return found
    python = chosen or sys.executable
    if chosen is None:
        installed = importlib.util.find_spec(peer.module) is not None
    else:
        check = [
            python,
            "-c",
            f"import importlib.util, sys; sys.exit(importlib.util.find_spec({peer.module!r}) is None)",
        ]
        try:
            installed = subprocess.run(check, capture_output=True, timeout=60, check=False).returncode == 0
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"{peer.name}: cannot run {python}: {error}") from error
    if not installed:
        raise UsageError(f"{peer.name} is not installed for {python}; name its Python as {peer.name}=/path/to/python")
    return python


def version_of(peer: Peer, program: str) -> str | None:
    """The version of a peer; None where it does not tell."""
    if peer.module:
        read = f"import importlib.metadata as m; print(m.version({peer.distribution!r}))"
        command = [program, "-c", read]
    else:
        command = [program, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    text = (done.stdout or done.stderr).strip()
    return text.splitlines()[0] if done.returncode == 0 and text else None


@contextmanager
def started(
    peer: Peer, program: str, model: str, random: bool, flags: Sequence[str], timeout_s: float = 900
) -> Iterator[Running]:
    """Start a server, wait until it lists its models, and end it at the end.

    Raises:
        PeerError: it ends, or does not answer within the timeout.
    """
    port = free_port()
    command = [*peer.command(program, model, port, random), *flags]
    url = f"http://127.0.0.1:{port}"
    with temporary(partial(TemporaryFile, "w+", errors="replace")) as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(url, process, timeout_s, peer.name, log)
            yield Running(url, version_of(peer, program), [Path(command[0]).name, *command[1:]])
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(url: str, process: subprocess.Popen[bytes], timeout_s: float, name: str, log: IO[str]) -> None:
    end = time.monotonic() + timeout_s
    while True:
        if (status := process.poll()) is not None:
            raise PeerError(f"{name} ended with status {status}: {_tail(log)}")
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        if time.monotonic() > end:
            raise PeerError(f"{name} does not answer within {timeout_s:g} s: {_tail(log)}")
        time.sleep(0.5)


def _tail(log: IO[str]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().splitlines() if line.strip()]
    return " | ".join(lines[-5:]) or "it printed nothing"
