"""Python processes that compile kernels. Tests interpret them, and a process cannot do both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, and environment variables besides this process's.

    It can import the tests' helpers.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        env=_environment() | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def _environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    folders = [str(Path(__file__).parent), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(folders)
    return environment


class Uninterpreted:
    """A process that runs one script after the other: it imports torch and Triton once for all of them."""

    _CODE = """
import contextlib, json, sys, traceback
for line in sys.stdin:
    script, names = json.loads(line)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            exec(script, names)
        answer = names.get("found"), None
    except Exception:
        answer = None, traceback.format_exc()
    print(json.dumps(answer, default=str), flush=True)
"""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._CODE], env=_environment(), stdin=pipe, stdout=pipe, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        assert self._process.returncode == 0

    def find(self, script: str, **names: Any) -> Any:
        """Run a script that has these names; what it calls ``found``, which has come through JSON, as the names have."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([script, names]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        found, error = json.loads(line)
        assert error is None, error
        return found
