"""Where and of what a measurement was taken: machine, commit, versions. A number without these says nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("draftline", "torch", "triton", "transformers")


def machine(device: torch.device) -> str:
    """The GPU's name, or the CPU's with the number of cores this process may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str | None:
    """The repository's commit, marked ``-dirty`` where files differ from it; None outside a repository."""
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


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that a measurement depends on, where they are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    # The package's version leaves out which CUDA a build is for.
    found["torch"] = torch.__version__
    return found
