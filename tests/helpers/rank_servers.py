"""Servers of a model on two ranks, to kill, and their processes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from patience import PATIENCE_S

from draftline.engine.cli.serve import LISTENING, READY

Server = tuple[subprocess.Popen[str], str]
"""The process, and its address."""

_FOLLOWER = b"draftline.engine.parallel.follower"


class Servers:
    """Starts servers of one model, and kills them in the end."""

    def __init__(self, folder: Path, *options: str) -> None:
        """``options`` of all servers of the model in ``folder``."""
        self._command = (sys.executable, "-m", "draftline", "serve", "--port", "0", "--model", str(folder), *options)
        self._servers: list[subprocess.Popen[str]] = []

    def start(self, *options: str) -> Server:
        """Start a server, and wait until it serves."""
        server = subprocess.Popen([*self._command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._servers.append(server)
        assert server.stdout is not None
        address = server.stdout.readline().partition(LISTENING)[2].strip()
        line = server.stdout.readline()
        assert READY in line, line + server.communicate(timeout=PATIENCE_S)[1]
        return server, address

    def close(self) -> None:
        """Kill those that run."""
        for server in self._servers:
            server.kill()
            server.communicate()


def _status(process: int) -> list[str]:
    """A process's state, its parent, and so on (proc_pid_stat(5))."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and those that they have started.

    Each names its parent. A parent's threads name their children too, but those of a thread that ends meanwhile pass to another one.
    """
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(folder.name)] = int(_status(int(folder.name))[1])
    found = [process]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


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
        return _status(pid)[0] == "Z"
    except FileNotFoundError:
        return True
