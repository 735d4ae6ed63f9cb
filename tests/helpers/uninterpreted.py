"""A Python process that compiles kernels. Tests interpret them, and a process cannot do both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(*arguments: str, stdin: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, standard input, and environment variables besides this process's.

    It can import the tests' helpers.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    folders = [str(Path(__file__).parent), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(folders)
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment | variables,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
