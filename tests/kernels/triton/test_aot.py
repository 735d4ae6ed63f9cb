"""The ahead-of-time compiler itself; `python -m draftline.kernels.triton.aot` compiles everything."""

from __future__ import annotations

import os
import subprocess
import sys


def aot(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "draftline.kernels.triton.aot", "--jobs", "1", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_kernels_compile_for_both_targets() -> None:
    done = aot("--kernel", "silu_mul")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].endswith(" 0 failed")
    assert {line.split()[0] for line in lines[:-1]} == {"sm_80", "sm_90"}
    assert all("_silu_mul_kernel N=" in line and ": ok " in line for line in lines[:-1])


def test_nothing_to_compile_is_a_failure() -> None:
    assert aot("--kernel", "no such kernel").returncode == 1
