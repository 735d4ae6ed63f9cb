"""Where and of what a measurement was taken: machine, commit, versions. A number without these says nothing."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("draftline", "torch", "triton", "transformers", "llama-cpp-python")


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a measurement was taken under.

    Attributes:
        date: when it began, UTC.
        machine: the GPU's name, or the CPU's with the number of cores this process may use.
        load: how many cores the machine's processes kept busy in the minute before.
        commit: the repository's, marked ``-dirty`` where files differ from it; None outside a repository.
        versions: of Python and of the packages that matter, where they are installed.
    """

    date: str
    machine: str
    load: float
    commit: str | None
    versions: Mapping[str, str]

    @staticmethod
    def now(device: torch.device) -> Conditions:
        """The conditions now, for work on ``device``."""
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return Conditions(date, _machine(device), os.getloadavg()[0], _commit(), _versions())


def _machine(device: torch.device) -> str:
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


def _commit() -> str | None:
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
    # The package's version leaves out which CUDA a build is for.
    found["torch"] = torch.__version__
    return found
