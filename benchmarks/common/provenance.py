"""The conditions of a measurement: machine, commit, versions. A number without them is meaningless."""

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

from draftline.engine.fingerprint import cpu_name

ROOT = Path(__file__).resolve().parents[2]
"""The repository's root."""

_PACKAGES = ("draftline", "torch", "triton", "transformers", "llama-cpp-python")


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a measurement.

    Attributes:
        date: the start, in UTC.
        machine: the name of the GPU, or of the CPU with the number of cores that this process may use.
        load: the load average of the minute before.
        commit: the commit of the repository, with ``-dirty`` if files differ from it; None outside a repository.
        versions: the versions of Python and of the relevant packages that are installed.
    """

    date: str
    machine: str
    load: float
    commit: str | None
    versions: Mapping[str, str]

    @staticmethod
    def now(device: torch.device) -> Conditions:
        """The current conditions, for work on ``device``."""
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return Conditions(date, _machine(device), os.getloadavg()[0], _commit(), _versions())


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores"


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
    # torch's own version includes the CUDA version of the build.
    found["torch"] = torch.__version__
    return found
