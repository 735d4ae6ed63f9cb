"""The conditions of a measurement: machine, commit, versions, command. A number without them is meaningless."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from draftline.engine.config import EngineConfig

ROOT = Path(__file__).resolve().parents[2]
"""The repository's root, unless the package is installed from a wheel."""

_PACKAGES = ("draftline", "torch", "triton", "transformers", "llama-cpp-python", "vllm", "sglang")


def conditions(device: torch.device | str | None = None) -> dict[str, Any]:
    """The current conditions, as fields of every line, for work on ``device``; None for a CPU, or a server elsewhere.

    - ``date``: now, in UTC.
    - ``machine``: the name of the GPU, or of the CPU with the number of cores that this process may use.
    - ``load``: the load average of the minute before.
    - ``commit``: the repository's, with ``-dirty`` if files differ from it; None outside a repository.
    - ``versions``: those of Python and of the relevant packages that are installed.
    - ``command``: see `command_line`.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": _machine(device),
        "load": round(os.getloadavg()[0], 2),
        "commit": _commit(),
        "versions": _versions(),
        "command": command_line(),
    }


def conditions_of(engine: EngineConfig) -> dict[str, Any]:
    """The `conditions` of an engine with these options on this host."""
    from draftline.engine.runner.device import select_device  # imports torch, which takes seconds

    return conditions(select_device(engine))


def conditions_of_servers() -> dict[str, Any]:
    """The `conditions` of servers on this host, which take its GPU where there is one.

    The GPU's name takes none of its memory here.
    """
    import torch  # takes seconds

    return conditions("cuda" if torch.cuda.is_available() else "cpu")


def command_line() -> str:
    """The command that runs, without the path of its program, and without a token."""
    program = Path(sys.argv[0]).name
    words = ["draftline" if program == "__main__.py" else program, *sys.argv[1:]]
    for index, word in enumerate(words):
        if word == "--token" and index + 1 < len(words):
            words[index + 1] = "…"
        elif word.startswith("--token="):
            words[index] = "--token=…"
    return shlex.join(words)


def _machine(device: torch.device | str | None) -> str:
    from draftline.engine.fingerprint import cpu_name  # imports torch, which takes seconds

    if str(device).startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores"


def _commit() -> str | None:
    # An installed package may lie inside another project's repository.
    if not (ROOT / ".git").exists() or not (ROOT / "pyproject.toml").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "torch" in sys.modules:
        import torch

        found["torch"] = torch.__version__  # with the CUDA version of the build
    return found
