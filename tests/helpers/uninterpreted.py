"""A Python process that compiles kernels. Tests interpret them, and a process cannot do both."""

from __future__ import annotations

import os
import subprocess
import sys


def run(*arguments: str, stdin: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, standard input, and environment variables besides this process's."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment | variables,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
